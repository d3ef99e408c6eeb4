"""Rewards of texts that combine figures of metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.metrics.cider import Cider, Spice
from groundling.metrics.classifier import IntentAccuracy
from groundling.metrics.meteor import Meteor
from groundling.metrics.parent import Parent
from groundling.metrics.rouge import ROUGE_TYPES, Rouge, RougeTokenizer
from groundling.metrics.scorer import Meta, References, Scorer, Texts
from groundling.metrics.synthetic import Dates
from groundling.rewards.composite import WeightedSum
from groundling.rewards.registry import rewards
from groundling.rewards.reward import Reward, TokenReward

rewards.register("parent")(Parent)
rewards.register("sentences_with_dates")(Dates)


@rewards.register("rouge")
def rouge(
    *,
    rouge_type: str = "rouge1",
    use_single_ref: bool | None = None,
    tokenizer: RougeTokenizer | None = None,
    compat: Literal["rl4lms"] | None = None,
) -> Rouge:
    """One of ROUGE's F-measures."""
    if rouge_type not in ROUGE_TYPES:
        raise ConfigError(f"rouge_type must be one of {', '.join(ROUGE_TYPES)}, got {rouge_type!r}")
    metric = Rouge(use_single_ref=use_single_ref, tokenizer=tokenizer, compat=compat)
    metric.reward_options = replace(metric.reward_options, key=f"lexical/rouge_{rouge_type}")
    return metric


@rewards.register("rouge_combined")
@dataclass(kw_only=True)
class RougeCombined(Reward):
    """Mean of ROUGE-1, ROUGE-2 and ROUGE-L."""

    needs_references = True

    use_single_ref: bool | None = None
    """As of the metric `rouge`."""
    tokenizer: RougeTokenizer | None = None
    """As of the metric `rouge`."""

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        metric = Rouge(use_single_ref=self.use_single_ref, tokenizer=self.tokenizer, compat=self.compat)
        figures = metric.compute(prompts, generations, references, meta)
        columns = [figures[f"lexical/rouge_{name}"].sentences or [] for name in ("rouge1", "rouge2", "rougeL")]
        return [sum(row) / len(row) for row in zip(*columns, strict=True)]

    def check(self) -> None:
        Rouge().check()


@rewards.register("says_reference")
@dataclass(kw_only=True)
class SaysReference(TokenReward):
    """1 for the token that completes one of the references; for whole texts, 1 if equal.
    Whitespace at the ends is ignored; later tokens have no reward. (Reward of Lamorel's example of PPO on tokens.)
    """

    needs_references = True

    def at_token(
        self,
        prompt: str,
        previous: str,
        current: str,
        done: bool,
        references: Sequence[str],
        meta: Mapping[str, Any] | None,
    ) -> float:
        wanted = {reference.strip() for reference in references}
        return float(current.strip() in wanted and previous.strip() not in wanted)


@rewards.register("spider")
def spider(
    *,
    spice_coeff: float = 0.5,
    cider_coeff: float = 0.5,
    corpus: References | None = None,
    compat: Literal["rl4lms"] | None = None,
) -> WeightedSum:
    """SPIDEr (Liu et al. 2017): weighted SPICE and CIDEr; needs Java."""
    parts: list[tuple[Scorer, float]] = [
        (Spice(compat=compat), spice_coeff),
        (Cider(corpus=corpus, compat=compat), cider_coeff),
    ]
    return WeightedSum(parts=parts, compat=compat)


@rewards.register("intent_accuracy")
@dataclass(kw_only=True)
class IntentReward(Reward):
    """1 if an answer has the right intent, plus its METEOR.
    With ``compat``, METEOR is the mean of all samples rewarded so far, as in the original.
    """

    needs_references = True

    intent_coeff: float = 1.0
    """Weight of the intent."""
    auto_coeff: float = 1.0
    """Weight of METEOR."""
    model_name: str = IntentAccuracy.model_name
    batch_size: Annotated[int, Ge(1)] = 32
    device: str = "auto"

    _intent: IntentAccuracy = field(init=False, repr=False)
    _meteors: tuple[int, float] = field(default=(0, 0.0), init=False, repr=False)
    """With ``compat``, number and sum of the METEORs so far."""

    def __post_init__(self) -> None:
        self.by_sample = self.compat is None
        self._intent = IntentAccuracy(
            model_name=self.model_name, batch_size=self.batch_size, device=self.device, compat=self.compat
        )

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        matches = self._intent.compute(prompts, generations, references, meta)["intent/accuracy"]
        figures = Meteor(compat=self.compat).compute(prompts, generations, references, meta)
        meteors = figures["lexical/meteor"].sentences or []
        if self.compat:
            meteors = [self._running_mean(score) for score in meteors]
        return [
            self.intent_coeff * match + self.auto_coeff * meteor
            for match, meteor in zip(matches.sentences or [], meteors, strict=True)
        ]

    def _running_mean(self, score: float) -> float:
        count, total = self._meteors
        self._meteors = count + 1, total + score
        return (total + score) / (count + 1)

    def check(self) -> None:
        self._intent.check()
        Meteor().check()

    def state_dict(self) -> dict[str, Any]:
        return {"meteors": list(self._meteors)} if self.compat else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.compat:
            count, total = state["meteors"]
            self._meteors = count, total
