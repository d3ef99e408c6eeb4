"""What a run can be told. The text under a field is its documentation; YAML files give the values."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omegaconf import MISSING

from groundling.rewards.part import RewardPartConfig

BASELINES = ("zero-shot", "random", "expert", "explorer")
"""What `groundling evaluate` can compare a trained policy with."""


class Init(StrEnum):
    """Where a language model's weights come from."""

    pretrained = "pretrained"
    random = "random"
    embeddings = "embeddings"


@dataclass
class EnvConfig:
    """The world, and how it is told."""

    id: str = MISSING
    """Any BabyAI or MiniGrid env that Gymnasium knows, a NetHack task, or with a pool TextGeneration-v0."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the env, such as task or num_dists."""
    num_envs: int = 32
    """Envs stepped together; GLAM used 32. With a pool: texts written in an update."""
    actions: list[str] | None = None
    """The admissible actions in words; the i-th is the env's action i. null: GLAM's six, in the env's language."""
    num_workers: int = 0
    """Processes that step the envs, for slow ones and for such as crash or hang; 0: the learner steps them."""
    timeout: float = 60.0
    """Seconds after which an env in a worker counts as hung."""
    history: int = 3
    """How many observations the prompt quotes, the present one included; 1 makes prompts short and fast."""
    language: str = "english"
    """english or french: the sentences, the mission and the prompt."""
    bootstrap_truncated: bool = False
    """Whether a time-out is valued as if the episode went on (the usual practice) or as its end (GLAM, Motif)."""


@dataclass
class NetHackConfig:
    """What runs in NetHack's tasks (env.id=NetHackScore-v1 and its siblings) can be told besides."""

    num_workers: int = 0
    """Processes of each learner that step its envs; 0: it steps them itself, which is fastest on a CPU with one learner
    for each core."""
    ahead: bool = False
    """Collect the next rollout while the learner is at work on this one; for GPUs, with workers."""


@dataclass
class DataConfig:
    """A dataset to learn from instead of envs."""

    path: str | None = None
    """A folder that `groundling collect` wrote; for algorithms that clone (bc). A step of training is then one of
    num_envs × steps_per_update transitions of each update."""


@dataclass
class ModelConfig:
    """The language model."""

    path: str = "starter"
    """A folder, a hub id, or one of the bundled models: starter, starter-causal."""
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
    """Spread the layers over this process's GPUs: auto, balanced, sequential; null: all on one device."""
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
    max_prompt_tokens: int | None = None
    """Keep only a prompt's last tokens; null: a prompt too long for the model is an error."""
    trust_remote_code: bool = False
    """Run code that comes with a model, once you have read it; counts only where the command line says it."""


@dataclass
class ComponentConfig:
    """A registered component: `groundling list` tells the ids."""

    id: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class PoolConfig:
    """What is to be written: a pool's prompts and references. A run with a pool writes texts to them."""

    id: str | None = None
    """One of `groundling list pools`; null: the run is one of envs."""
    args: dict[str, Any] = field(default_factory=dict)
    texts_per_prompt: int = 1
    """How many texts of an update are written to one prompt: the groups of RLOO and GRPO; usually 1, or 4 to 16."""
    replacement: bool = True
    """Draw the prompts independently of each other (as RL4LMs), or in epochs that have every prompt once."""


@dataclass
class TrainingConfig:
    """How long, and what is kept."""

    steps: int = 1_500_000
    """Env steps, or tokens written, in total; GLAM took 1.5 million."""
    epochs: int | None = None
    """In the place of steps, where a dataset or a pool's references are learnt: how often all of it."""
    steps_per_update: int = 40
    """Steps that each env takes between two updates; GLAM took 40. With a pool: tokens of a text at most."""
    checkpoint_every: int = 1
    """Updates between checkpoints: what a killed run can lose at most."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints stay on disk."""
    entropy_floor: float = 0.001
    """Stop, with advice, when the policy's entropy (nats) stays below this while episodes still fail; 0: never."""

    wandb: str | None = None
    """A project of Weights & Biases that is told every update's figures, too (extra wandb; WANDB_MODE=offline keeps
    them on this machine); null: none."""
    probes: int | str | None = None
    """1, 2 or both: log each action's probability in one or both of two sets of fixed situations, before the first
    update and after each; null: no."""


@dataclass
class EvaluationConfig:
    """Held-out episodes."""

    episodes: int = 1000
    """How many are played; of the validation split, how many texts or transitions are measured at most."""
    num_envs: int = 32
    deterministic: bool = False
    """Take the likeliest action instead of drawing one; GLAM draws."""
    baselines: list[str] = field(default_factory=lambda: ["zero-shot", "random", "expert"])
    """What the trained policy is compared with on the same episodes: zero-shot, random, expert (texts: zero-shot;
    NetHack: zero-shot, random, explorer)."""
    metrics: list[ComponentConfig] = field(default_factory=list)
    """Of texts: ids of `groundling list metrics` and their arguments, as in [{id: rouge}]."""
    generation: dict[str, Any] = field(default_factory=dict)
    """How texts are written for evaluation: arguments of Transformers' generate, such as {num_beams: 5}; empty: as
    in training. Texts begin and end as in training, the model's own generation config is left out of account, and so
    is NLPO's mask, which generate does not know."""
    post_process: str | None = None
    """What is done to a text before it is measured: three_sentence_summary keeps its first three sentences; null:
    nothing."""
    every: int | None = None
    """Updates between two measurements of the validation split, a pool's or a dataset's, during training, the first
    before it, and one after its last update; null: none."""
    batch_size: int = 64
    """Texts written at once for evaluation."""


@dataclass
class Config:
    """One run."""

    name: str = MISSING
    """What the run is called in reports; runs of one name and several seeds share a curve."""
    seed: int = 1
    run_dir: str = "runs/${name}-seed${seed}"
    """The run's folder: the same command with the same folder resumes."""
    imports: list[str] = field(default_factory=list)
    """Modules of your own that the run was made with, as --import named them: told here, never imported by it."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, …; auto takes the accelerator if there is one."""
    env: EnvConfig = field(default_factory=EnvConfig)
    nethack: NetHackConfig = field(default_factory=NetHackConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    reward: dict[str, RewardPartConfig | None] = field(default_factory=dict)
    """What is learnt from: the sum of parts, by name. What the world itself pays is the part env, which is always one;
    null, or ~reward.NAME, takes a part out."""
    policy: ComponentConfig = field(default_factory=ComponentConfig)
    algorithm: ComponentConfig = field(default_factory=ComponentConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
