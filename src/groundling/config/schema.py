"""The sections of a run's config. Each field is documented by the string below it."""

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
    if not text.strip() or not text.isprintable():  # it is written to job files as one line
        raise ValueError("one line of printable characters")
    return text


Line = Annotated[str, AfterValidator(_check_line)]  # A single, non-empty line


class ModelConfig(Section):
    """The language model."""

    path: Annotated[str, FixedByTraining] = "starter"
    """A folder, a hub id, a GGUF file, one of the bundled models (starter, starter-causal), or smollm2."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer, for models saved without one. If null, the model's path is used."""
    init: Annotated[Literal["pretrained", "random", "embeddings"], FixedByTraining] = "pretrained"
    """pretrained, random (only the model's config is used) or embeddings (random except for the token embeddings)."""
    dtype: str = "float32"
    """Data type of the weights: float32, bfloat16 or float16."""
    attention: Annotated[str | None, CommandLineOnly.when(lambda value: "/" in value)] = None
    """eager, sdpa, flash_attention_2, … If null, Transformers chooses, but T5 on CPUs uses eager, which is faster."""
    device_map: str | None = None
    """Spread the layers over this process's share of GPUs: auto, balanced or sequential. If null, use one device."""
    load_in_4bit: bool = False
    """Store the weights in NF4 (QLoRA), which needs a quarter of bfloat16's memory. Training requires model.lora."""
    gradient_checkpointing: Annotated[bool, NoEffectOnResults] = False
    """Recompute activations in the backward pass, which saves memory but takes a third more time."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer states across processes (FSDP). The policy must generate text."""
    compile: bool = False
    """Compile the training forward pass (torch.compile), which takes a minute or more at each start."""
    lora: Annotated[dict[str, Any], CommandLineOnly.of("megatron_core")] = {}
    """Keyword arguments of peft.LoraConfig, such as {r: 16, lora_alpha: 32}. If empty, all weights are trained."""
    max_prompt_tokens: Annotated[int | None, Ge(1)] = None
    """Longer prompts are truncated from the left, with a warning. If null, overlong prompts raise an error."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens to prompts: </s> at the end for T5, <s> at the start for Llama 2. Lamorel has
    not added them since November 2023. Setting this to false is an error if the tokenizer adds none."""
    trust_remote_code: Annotated[bool, CommandLineOnly] = False
    """Run code that comes with the model; read it first. This can only be set on the command line."""


class CloningConfig(Section):
    """Behavioural cloning of demonstrations before the policy learns from its own episodes, in the same run."""

    episodes: Annotated[int | None, Ge(1)] = None
    """Number of episodes, recorded in RUN/demonstrations and cloned in RUN/clone. If null, nothing is cloned."""
    agent: str = "expert"
    """The demonstrator, one of the world's built-in agents."""
    epochs: Annotated[int, Ge(1)] = 1
    """Number of passes over the demonstrations."""
    args: dict[str, Any] = {}
    """Arguments of the algorithm bc, such as {objective: choice, learning_rate: 1.0e-3}."""


class TrainingConfig(Section):
    """Length of a run, checkpoints and tracking."""

    steps: Annotated[int, Ge(1), MayChangeOnResume] = 1_500_000
    """Total number of env steps, or of generated tokens. GLAM used 1.5 million."""
    epochs: Annotated[int | None, Ge(1), MayChangeOnResume] = None
    """Number of passes over a dataset or a pool's references; replaces steps. A pass may end with a smaller update."""
    checkpoint_every: Annotated[int, Ge(1), NoEffectOnResults] = 1
    """Number of updates between checkpoints. A killed run loses at most this many updates."""
    keep_checkpoints: Annotated[int, Ge(1), NoEffectOnResults] = 2
    """Number of most recent checkpoints to keep on disk."""
    wandb: Annotated[Line | None, NoEffectOnResults] = None
    """Weights & Biases project for every update's metrics (extra wandb; set WANDB_MODE=offline to stay local)."""
    trackio: Annotated[Line | None, NoEffectOnResults] = None
    """Trackio project for every update's metrics, which stay on this machine (extra trackio)."""


class Config(Section):
    """A run's config; `config_of` creates the subclass for a kind of world, with its ``world`` and ``evaluation``."""

    name: Annotated[Line, MayChangeOnResume]
    """The run's name in reports; runs with the same name and different seeds share a curve."""
    seed: Annotated[int, Ge(0), Lt(2**31)] = 1
    run_dir: Annotated[Line, NoEffectOnResults] = "runs/${name}-seed${seed}"
    """The run's folder. Repeating a command with the same folder resumes the run."""
    imports: Annotated[list[str], NoEffectOnResults] = []
    """Your own modules that the run used, as passed to --import. They are only recorded, never imported from here."""
    objects: Annotated[dict[str, str], NoEffectOnResults] = {}
    """MODULE:NAME of each Python object that the run was created from, by id. They are recorded but never imported."""
    chosen: Annotated[list[str], NoEffectOnResults] = []
    """Settings that were chosen for the model and the world, with reasons (docs/defaults.md). This is only a record."""
    device: Annotated[str, NoEffectOnResults] = "auto"
    """cpu, cuda, cuda:1, …; auto uses an accelerator if one is available."""
    world: SerializeAsAny[WorldConfig]
    """The source of experience: ``world.id`` is its kind, and each kind has its own keys."""
    model: ModelConfig = ModelConfig()
    reward: dict[str, Annotated[RewardPartConfig, ArgumentsOf(parts)] | None] = {}
    """A sum of named parts; the default is env, the world's own reward. null or ~reward.NAME removes a part."""
    policy: Annotated[ComponentConfig, ArgumentsOf(policies), FixedByTraining.of("id")]
    algorithm: Annotated[ComponentConfig, ArgumentsOf(algorithms), FixedByTraining]
    cloning: Annotated[CloningConfig, FixedByTraining] = CloningConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: Annotated[SerializeAsAny[EvaluationConfig], MayChangeOnResume]
    """Evaluation on held-out episodes. Each kind of world also has its own keys here."""


@cache
def config_of(id: str) -> type[Config]:
    """Return the config class for a kind of world; raise `ConfigError` if the kind is unknown."""
    fields, world = Config.model_fields, cast(type[World], worlds.get(id))
    sections = {
        "world": annotation(world, "config", WorldConfig),
        "evaluation": annotation(world, "evaluation", EvaluationConfig),
    }
    typed: dict[str, Any] = {n: (Annotated[one, *fields[n].metadata], ...) for n, one in sections.items()}
    return create_model("Config", __base__=Config, **typed)
