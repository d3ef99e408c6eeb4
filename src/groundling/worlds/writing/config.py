"""What the config says of texts that are written to a pool's prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, get_args

from omegaconf import MISSING

from groundling.envs.text_generation import pools
from groundling.envs.text_generation.prompts import Side
from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.lm.write.settings import check_generation
from groundling.metrics.post_processing import post_processors
from groundling.registry import ComponentConfig, check_component, unknown
from groundling.rewards import measures
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig


@dataclass
class WritingConfig(WorldConfig):
    """A pool's prompts, to which texts are written; or its references, to be learnt."""

    ROWS: ClassVar[str] = "num_texts"
    STEPS: ClassVar[str] = "num_tokens"
    PLACE: ClassVar[str] = "pool"

    id: str = "writing"
    pool: str = MISSING
    """One of `groundling list pools`."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the pool."""
    num_texts: Annotated[int, Ge(1)] = 32
    """Texts written in an update."""
    num_tokens: Annotated[int, Ge(1)] = 40
    """Tokens of a text at most."""
    texts_per_prompt: Annotated[int, Ge(1)] = 1
    """How many texts of an update are written to one prompt: the groups of RLOO and GRPO; usually 1, or 4 to 16."""
    replacement: bool = True
    """Draw the prompts independently of each other (as RL4LMs), or in epochs that have every prompt once."""
    max_prompt_length: Annotated[int, Ge(1)] = 128
    """Tokens of a prompt that are read; of a longer one the rest is left out."""
    prompt_truncation_side: str = "left"
    """Where the rest is left out: left or right."""
    chat: bool = False
    """Whether a prompt is what a user says, and the text the answer, by the model's chat template."""
    system: str | None = None
    """The system prompt of such a conversation; null: the template's own, if it has one."""

    def check(self) -> None:
        """See `WorldConfig.check`."""
        check_component(pools, ComponentConfig(self.pool, self.args), "world")
        if self.prompt_truncation_side not in get_args(Side):
            named = unknown("value of world.prompt_truncation_side", self.prompt_truncation_side, get_args(Side))
            raise ConfigError(named)
        if self.num_texts % self.texts_per_prompt:
            raise ConfigError(
                f"world.num_texts={self.num_texts} texts an update are no whole number of groups of "
                f"world.texts_per_prompt={self.texts_per_prompt}: let the second divide the first"
            )

    def unused(self, use: Use) -> Mapping[str, str]:
        """See `WorldConfig.unused`."""
        idle = {"model.max_prompt_tokens": "prompts are cut at world.max_prompt_length"}
        if not self.chat:
            idle["world.system"] = "prompts are read as they are (world.chat=false)"
        else:
            idle["model.add_special_tokens"] = "prompts are written by the chat template (world.chat=true)"
        if use.demonstrated:
            reason = "its algorithm reads the references, each in its turn"
            idle |= {"world.texts_per_prompt": reason, "world.replacement": reason}
        return idle


@dataclass
class WritingEvaluation(EvaluationConfig):
    """Texts to a split's prompts."""

    metrics: list[ComponentConfig] = field(default_factory=list)
    """Ids of `groundling list metrics` and their arguments, as in [{id: rouge}]."""
    generation: dict[str, Any] = field(default_factory=dict)
    """How texts are written for evaluation: arguments of Transformers' generate, such as {num_beams: 5}; empty: as
    in training. Texts begin and end as in training, the model's own generation config is left out of account, and so
    is NLPO's mask, which generate does not know."""
    post_process: str | None = None
    """What is done to a text before it is measured: three_sentence_summary keeps its first three sentences; null:
    nothing."""
    every: Annotated[int | None, Ge(1)] = None
    """Updates between two measurements of the validation split during training, the first before it, and one after its
    last update; null: none."""
    batch_size: Annotated[int, Ge(1)] = 64
    """Texts written at once."""

    def check(self) -> None:
        """See `EvaluationConfig.check`."""
        for number, metric in enumerate(self.metrics):
            check_component(measures, metric, f"evaluation.metrics[{number}]", filled_in=("lm",))
        check_generation("evaluation.generation", self.generation)
        self._check_lengths()
        if self.post_process is not None:
            post_processors.get(self.post_process)

    def _check_lengths(self) -> None:
        """One text is measured to each prompt, of world.num_tokens tokens unless max_new_tokens says how many."""
        if "max_length" in self.generation:
            raise ConfigError(
                f"evaluation.generation.max_length={self.generation['max_length']} does nothing beside "
                "max_new_tokens, which is world.num_tokens unless you set it: set max_new_tokens instead"
            )
        if self.generation.get("max_new_tokens", 1) is None:
            raise ConfigError(
                "evaluation.generation.max_new_tokens=null leaves the texts without an end: set a number, or leave it "
                "out for world.num_tokens"
            )
        if (texts := self.generation.get("num_return_sequences")) not in (None, 1):
            raise ConfigError(
                f"evaluation.generation.num_return_sequences={texts} writes {texts} texts to each prompt, and one is "
                "measured: leave it out"
            )
