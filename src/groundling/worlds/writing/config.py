"""Settings of a pool's prompts, to which texts are written."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from groundling.envs.text_generation import pools
from groundling.errors import ConfigError
from groundling.fields import ArgumentsOf, CommandLineOnly, Ge, OfEvaluation, ReadByModel
from groundling.lm.write.settings import check_generation
from groundling.metrics.post_processing import post_processors
from groundling.registry import ComponentConfig
from groundling.rewards import measures
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig


class WritingConfig(WorldConfig):
    """A pool's prompts, to which texts are written; or its references, to be learnt."""

    ROWS: ClassVar[str] = "num_texts"
    STEPS: ClassVar[str] = "num_tokens"
    PLACE: ClassVar[str] = "pool"

    id: str = "writing"
    pool: Annotated[str, OfEvaluation]
    """One of `groundling list pools`."""
    args: Annotated[dict[str, Any], OfEvaluation, ArgumentsOf(pools, "pool")] = {}
    """Keyword arguments of the pool."""
    num_texts: Annotated[int, Ge(1)] = 32
    """Texts written in an update."""
    num_tokens: Annotated[int, Ge(1), OfEvaluation] = 40
    """Tokens of a text at most."""
    texts_per_prompt: Annotated[int, Ge(1)] = 1
    """Texts of an update that are written to one prompt: the groups of RLOO and GRPO; usually 1, or 4 to 16."""
    replacement: bool = True
    """Draw the prompts independently of each other (as RL4LMs), not in epochs that have every prompt once."""
    max_prompt_length: Annotated[int, Ge(1), OfEvaluation] = 128
    """Tokens of a prompt that are read; the rest of a longer one is left out."""
    prompt_truncation_side: Annotated[Literal["left", "right"], OfEvaluation] = "left"
    """Side on which the rest is left out."""
    chat: Annotated[bool, OfEvaluation] = False
    """Take a prompt as a user's message and the text as the answer, by the model's chat template."""
    system: Annotated[str | None, OfEvaluation, ReadByModel] = None
    """The system prompt of such a conversation; null: the template's own, if it has one."""

    def check(self) -> None:
        if self.num_texts % self.texts_per_prompt:
            raise ConfigError(
                f"world.num_texts={self.num_texts} texts an update are no whole number of groups of "
                f"world.texts_per_prompt={self.texts_per_prompt}: let the second divide the first"
            )

    def unused(self, use: Use) -> Mapping[str, str]:
        idle = {"model.max_prompt_tokens": "prompts are cut at world.max_prompt_length"}
        if not self.chat:
            idle["world.system"] = "prompts are read as they are (world.chat=false)"
        else:
            idle["model.add_special_tokens"] = "prompts are written by the chat template (world.chat=true)"
        if use.demonstrated:
            reason = "its algorithm reads the references, each in its turn"
            idle |= {"world.texts_per_prompt": reason, "world.replacement": reason}
        return idle


class WritingEvaluation(EvaluationConfig):
    """Texts written to a split's prompts."""

    metrics: Annotated[list[Annotated[ComponentConfig, ArgumentsOf(measures)]], OfEvaluation] = []
    """Ids of `groundling list metrics` and their arguments, as in [{id: rouge}]."""
    generation: Annotated[
        dict[str, Any], OfEvaluation, CommandLineOnly.of("custom_generate", "trust_remote_code")
    ] = {}
    """Arguments of Transformers' generate for evaluation, such as {num_beams: 5}; empty: as in training. Texts begin
    and end as in training, without the model's own generation config and NLPO's mask, which generate does not know."""
    post_process: Annotated[str | None, OfEvaluation] = None
    """Processing of a text before it is measured: three_sentence_summary keeps three sentences; null: none."""
    every: Annotated[int | None, Ge(1)] = None
    """Updates between two measurements of the validation split; also before the first and after the last; null: none.
    """
    batch_size: Annotated[int, Ge(1)] = 64
    """Texts written at once."""

    def check(self) -> None:
        check_generation("evaluation.generation", self.generation)
        self._check_lengths()
        if self.post_process is not None:
            post_processors.get(self.post_process)

    def _check_lengths(self) -> None:
        """Check that one text of a known length is measured to each prompt."""
        if "max_length" in self.generation:
            raise ConfigError(
                f"evaluation.generation.max_length={self.generation['max_length']} does nothing next to "
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
