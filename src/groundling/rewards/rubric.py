"""Rewards from a judge that scores each text using a rubric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any

from groundling.errors import ConfigError, RunError
from groundling.fields import ArgumentsOf, CommandLineOnly, ReadByModel
from groundling.io.chat_server import check_address
from groundling.judges.asking.judge import Judge, Outcome, ask, judges
from groundling.judges.asking.rubric import Rubric
from groundling.judges.preferences.pairs import Comparison
from groundling.judges.preferences.store import content_hash
from groundling.metrics.metric import Meta, References, Texts
from groundling.registry import check_arguments, taken
from groundling.rewards.part import Reward
from groundling.rewards.registry import rewards
from groundling.rewards.reward_model_part import asks_server


@rewards.register("rubric")
@dataclass(kw_only=True)
class RubricReward(Reward):
    """Score that a judge assigns to each text using a rubric; identical pairs of prompt and text are scored once.
    If the judge fails or returns no score even after a retry, the text gets the mean score of the others in the batch.
    """

    judge: Annotated[str, CommandLineOnly.when(asks_server)]
    """A caption judge (see `groundling list judges`). Server judges can only be set on the command line."""
    args: Annotated[dict[str, Any], ArgumentsOf(judges, "judge")] = field(default_factory=dict)
    """Arguments of the judge, as in `groundling annotate --judge ID key=value`."""
    rubric: Annotated[str, ReadByModel]
    """Description of what makes a text deserve a high or a low score."""
    scale: tuple[int, int] = (1, 5)
    """Lowest and highest score."""

    _question: Rubric = field(init=False, repr=False)
    _judge: Judge | None = field(default=None, init=False, repr=False)
    _scores: dict[str, float] = field(default_factory=dict, init=False, repr=False)  # by a hash of prompt and text
    _counts: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._question = Rubric(instructions=self.rubric, scale=(self.scale[0], self.scale[1]))
        self._counts = {"rubric_scored": 0, "rubric_invalid": 0, "rubric_failures": 0}

    def check(self) -> None:
        check_arguments(judges.get(self.judge), self.args, f"judge {self.judge!r}", "args.")
        if asks_server(self.judge):  # an address with a secret would be written to files
            check_address(**{name: str(value) for name, value in taken(check_address, self.args).items()})

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        asked = list(zip(prompts, generations, strict=True))
        keys = {pair: content_hash(pair)[:16] for pair in asked}
        self._ask([pair for pair, key in keys.items() if key not in self._scores])
        scores = [self._scores.get(keys[pair]) for pair in asked]
        known = [score for score in scores if score is not None]
        neutral = fmean(known or self.scale)
        return [neutral if score is None else score for score in scores]

    def _ask(self, pairs: list[tuple[str, str]]) -> None:
        """Have the judge score texts; raise `RunError` if it has never returned a score."""
        if self._judge is None:
            judge = judges.create(self.judge, **self.args)
            if not isinstance(judge, Judge):
                raise ConfigError(f"judge={self.judge} cannot score single texts: choose a different judge")
            if (refusal := self._question.refusal(judge)) is not None:
                raise ConfigError(f"judge={self.judge}: {refusal}")
            self._judge = judge
        problem = ""

        def keep(outcome: Outcome) -> None:
            nonlocal problem
            score, failure = self._question.score(outcome), outcome.replies[-1].failure
            if score is not None:
                self._scores[content_hash(pairs[outcome.number])[:16]] = score
                self._counts["rubric_scored"] += 1
                return
            self._counts["rubric_invalid" if failure is None else "rubric_failures"] += 1
            problem = failure or f"the reply {outcome.excerpt!r} contains no score in the requested format"

        ask(self._judge, self._question, (Comparison(text, "", prompt) for prompt, text in pairs), keep)
        if problem and not self._scores:
            raise RunError(f"judge {self.judge} scored none of the {len(pairs)} texts: {problem}")

    def figures(self) -> dict[str, int]:
        return dict(self._counts)

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self._scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scores |= state["scores"]  # keep scores that have been paid for, even when the state is reset
