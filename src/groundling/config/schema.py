"""The sections of a run's config. The text under a field is its documentation."""

from functools import cache
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, SerializeAsAny, create_model

from groundling.algorithms.algorithm import algorithms
from groundling.fields import (
    ArgumentsOf,
    CommandLineOnly,
    FixedByTraining,
    Ge,
    Lt,
    MayChangeOnResume,
    NoEffectOnResults,
    Section,
    annotation,
)
from groundling.policies.policy import policies
from groundling.registry import ComponentConfig
from groundling.rewards import parts
from groundling.rewards.part import RewardPartConfig
from groundling.worlds import World, worlds
from groundling.worlds.config import EvaluationConfig, WorldConfig


def _check_line(text: str) -> str:
    if not text.strip() or not text.isprintable():  # it gets into job files, line by line
        raise ValueError("one line of printable characters")
    return text


Line = Annotated[str, AfterValidator(_check_line)]  # One line, not empty


class ModelConfig(Section):
    """The language model."""

    path: Annotated[str, FixedByTraining] = "starter"
    """A folder, a hub id, a GGUF file, one of the bundled models (starter, starter-causal), or smollm2."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer, for models saved without one; null: where the model is."""
    init: Annotated[Literal["pretrained", "random", "embeddings"], FixedByTraining] = "pretrained"
    """pretrained; random: from its config alone; embeddings: random but for the token embeddings."""
    dtype: str = "float32"
    """float32, bfloat16 or float16: how the weights are kept."""
    attention: Annotated[str | None, CommandLineOnly.when(lambda value: "/" in value)] = None
    """eager, sdpa, flash_attention_2, …; null: Transformers' choice, but eager for T5 on CPUs, which is faster."""
    device_map: str | None = None
    """Spread the layers over this process's share of the GPUs: auto, balanced, sequential; null: use one device."""
    load_in_4bit: bool = False
    """Keep the weights in NF4 (QLoRA): a quarter of bfloat16's memory; to be trained with model.lora."""
    gradient_checkpointing: Annotated[bool, NoEffectOnResults] = False
    """Compute activations again in the backward pass: less memory, a third more time."""
    fsdp: bool = False
    """Shard the layers' weights, gradients and optimizer moments over the run's processes while it learns (fully
    sharded data parallel); for policies that write."""
    compile: bool = False
    """Compile the forward pass of training (torch.compile): a minute or more at each start."""
    lora: Annotated[dict[str, Any], CommandLineOnly.of("megatron_core")] = {}
    """Keyword arguments of peft.LoraConfig, such as {r: 16, lora_alpha: 32}; empty: train all weights."""
    max_prompt_tokens: Annotated[int | None, Ge(1)] = None
    """Keep only a prompt's last tokens, with a warning; null: a prompt too long for the model is an error."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens to prompts: </s> at the end for T5, <s> at the beginning for Llama 2. false:
    none, as Lamorel since November 2023; an error for tokenizers that add none."""
    trust_remote_code: Annotated[bool, CommandLineOnly] = False
    """Run code that comes with a model, once you have read it; only the command line can set it."""


class CloningConfig(Section):
    """Behavioural cloning of demonstrations before the policy learns from its own episodes, in the same folder."""

    episodes: Annotated[int | None, Ge(1)] = None
    """Number of episodes; null: no cloning. They are recorded in RUN/demonstrations; RUN/clone is the clone's run."""
    agent: str = "expert"
    """The demonstrator: one of the world's own agents."""
    epochs: Annotated[int, Ge(1)] = 1
    """Passes over the demonstrations."""
    args: dict[str, Any] = {}
    """Arguments of algorithm bc, such as {objective: choice, learning_rate: 1.0e-3}."""


class TrainingConfig(Section):
    """Length of a run, checkpoints and tracking."""

    steps: Annotated[int, Ge(1), MayChangeOnResume] = 1_500_000
    """Env steps, or tokens written, in total; GLAM took 1.5 million."""
    epochs: Annotated[int | None, Ge(1), MayChangeOnResume] = None
    """Passes over a dataset or a pool's references, instead of steps; the last update of a pass may be short."""
    checkpoint_every: Annotated[int, Ge(1), NoEffectOnResults] = 1
    """Updates between checkpoints: the most that a killed run loses."""
    keep_checkpoints: Annotated[int, Ge(1), NoEffectOnResults] = 2
    """Number of checkpoints kept on disk, the latest ones."""
    wandb: Annotated[Line | None, NoEffectOnResults] = None
    """Weights & Biases project that also gets every update's figures (extra wandb; WANDB_MODE=offline: stay local)."""
    trackio: Annotated[Line | None, NoEffectOnResults] = None
    """Trackio project that also gets every update's figures, on this machine (extra trackio)."""


class Config(Section):
    """One run. `config_of` makes the class for a kind of world, which has its sections ``world`` and ``evaluation``."""

    name: Line
    """The run's name in reports; runs of one name and several seeds share a curve."""
    seed: Annotated[int, Ge(0), Lt(2**31)] = 1
    run_dir: Annotated[Line, NoEffectOnResults] = "runs/${name}-seed${seed}"
    """The run's folder: the same command with the same folder resumes."""
    imports: Annotated[list[str], NoEffectOnResults] = []
    """Modules of your own that the run was made with, as --import named them: recorded, never imported from here."""
    device: Annotated[str, NoEffectOnResults] = "auto"
    """cpu, cuda, cuda:1, …; auto takes the accelerator if there is one."""
    world: SerializeAsAny[WorldConfig]
    """The source of experience: ``world.id`` names its kind, and each kind has keys of its own."""
    model: ModelConfig = ModelConfig()
    reward: dict[str, Annotated[RewardPartConfig, ArgumentsOf(parts)] | None] = {}
    """A sum of named parts. The world's own reward is the part env, present by default; null or ~reward.NAME removes a
    part."""
    policy: Annotated[ComponentConfig, ArgumentsOf(policies), FixedByTraining.of("id")]
    algorithm: Annotated[ComponentConfig, ArgumentsOf(algorithms), FixedByTraining]
    cloning: Annotated[CloningConfig, FixedByTraining] = CloningConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: Annotated[SerializeAsAny[EvaluationConfig], MayChangeOnResume]
    """Held-out episodes; each kind of world has keys of its own here, too."""


@cache
def config_of(id: str) -> type[Config]:
    """Return the class of the configs of a kind of world; raise `ConfigError` if it is unknown."""
    fields, world = Config.model_fields, cast(type[World], worlds.get(id))
    sections = {
        "world": annotation(world, "config", WorldConfig),
        "evaluation": annotation(world, "evaluation", EvaluationConfig),
    }
    typed: dict[str, Any] = {n: (Annotated[one, *fields[n].metadata], ...) for n, one in sections.items()}
    return create_model("Config", __base__=Config, **typed)
