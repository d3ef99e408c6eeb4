"""What a run can be told. The text under a field is its documentation; YAML files give the values."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from omegaconf import MISSING

from groundling.fields import Ge
from groundling.registry import ComponentConfig
from groundling.rewards.part import RewardPartConfig
from groundling.worlds.config import EvaluationConfig, WorldConfig


class Init(StrEnum):
    """Where a language model's weights come from."""

    pretrained = "pretrained"
    random = "random"
    embeddings = "embeddings"


@dataclass
class ModelConfig:
    """The language model."""

    path: str = "starter"
    """A folder, a hub id, a GGUF file, one of the bundled models (starter, starter-causal), or smollm2."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer, for models saved without one; null: where the model is."""
    init: Init = Init.pretrained
    """pretrained; random: from its config alone; embeddings: random but for the token embeddings."""
    dtype: str = "float32"
    """float32, bfloat16 or float16: how the weights are kept."""
    attention: str | None = None
    """Transformers' attention implementation: eager, sdpa, flash_attention_2, …; null: its own choice, and eager for T5
    on CPUs, where it is faster."""
    device_map: str | None = None
    """Spread the layers over this process's equal share of the machine's GPUs: auto, balanced, sequential; null: all on
    one device."""
    load_in_4bit: bool = False
    """Keep the weights in NF4 (QLoRA): a quarter of bfloat16's memory; to be trained with model.lora."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more time."""
    fsdp: bool = False
    """Deal the layers' weights, gradients and the optimizer's moments out over the run's processes while it learns
    (fully sharded data parallel); for policies that write."""
    compile: bool = False
    """Compile what training reads texts with (torch.compile): a minute or more at each start."""
    lora: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of peft.LoraConfig, such as {r: 16, lora_alpha: 32}; empty: train all weights."""
    max_prompt_tokens: Annotated[int | None, Ge(1)] = None
    """Keep only a prompt's last tokens, with a warning; null: a prompt too long for the model is an error."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens to prompts: </s> at the end for T5, <s> at the beginning for Llama 2. false:
    none, as Lamorel since November 2023; an error for tokenizers that add none."""
    trust_remote_code: bool = False
    """Run code that comes with a model, once you have read it; counts only where the command line says it."""


@dataclass
class CloningConfig:
    """Demonstrations that the policy clones before it learns from its own episodes, in the same run folder."""

    episodes: Annotated[int | None, Ge(1)] = None
    """How many; null: no cloning. They are recorded in RUN/demonstrations, and the clone is a run in RUN/clone."""
    agent: str = "expert"
    """The demonstrator: one of the world's own agents."""
    epochs: Annotated[int, Ge(1)] = 1
    """Passes over them."""
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of algorithm bc, such as {objective: choice, learning_rate: 1.0e-3}."""


@dataclass
class TrainingConfig:
    """How long, and what is kept."""

    steps: Annotated[int, Ge(1)] = 1_500_000
    """Env steps, or tokens written, in total; GLAM took 1.5 million."""
    epochs: Annotated[int | None, Ge(1)] = None
    """Passes over a dataset or a pool's references, instead of steps; the last update of a pass may be short."""
    checkpoint_every: Annotated[int, Ge(1)] = 1
    """Updates between checkpoints: what a killed run can lose at most."""
    keep_checkpoints: Annotated[int, Ge(1)] = 2
    """How many of the latest checkpoints stay on disk."""
    wandb: str | None = None
    """A project of Weights & Biases that is told every update's figures, too (extra wandb; WANDB_MODE=offline keeps
    them on this machine); null: none."""
    trackio: str | None = None
    """A project of Trackio that is told them, too, on this machine (extra trackio); null: none."""


@dataclass
class Config:
    """One run."""

    name: str = MISSING
    """What the run is called in reports; runs of one name and several seeds share a curve."""
    seed: Annotated[int, Ge(0)] = 1
    run_dir: str = "runs/${name}-seed${seed}"
    """The run's folder: the same command with the same folder resumes."""
    imports: list[str] = field(default_factory=list)
    """Modules of your own that the run was made with, as --import named them: told here, never imported by it."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes the accelerator if there is one."""
    world: WorldConfig = field(default_factory=WorldConfig)
    """Where experience comes from: ``world.id`` says of which kind it is, and each kind has keys of its own."""
    model: ModelConfig = field(default_factory=ModelConfig)
    reward: dict[str, RewardPartConfig | None] = field(default_factory=dict)
    """What is learnt from: the sum of parts, by name. What the world itself pays is the part env, which is always one;
    null, or ~reward.NAME, takes a part out."""
    policy: ComponentConfig = field(default_factory=ComponentConfig)
    algorithm: ComponentConfig = field(default_factory=ComponentConfig)
    cloning: CloningConfig = field(default_factory=CloningConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Each kind of world has keys of its own here, too."""
