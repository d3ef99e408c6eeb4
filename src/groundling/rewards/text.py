"""Rewards of texts that are more than one figure of one metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from groundling.errors import ConfigError
from groundling.metrics.bleu import Ter
from groundling.metrics.cider import Cider, Spice
from groundling.metrics.classifier import IntentAccuracy
from groundling.metrics.meteor import Meteor
from groundling.metrics.metric import Meta
from groundling.metrics.parent import Parent
from groundling.metrics.rouge import ROUGE_TYPES, Rouge, RougeTokenizer
from groundling.metrics.synthetic import Dates
from groundling.rewards.adapters import MetricReward, metric_as_reward
from groundling.rewards.composite import WeightedSum, shaped
from groundling.rewards.reward import Reward, TokenReward, rewards

Compat = Literal["rl4lms"] | None
Shaping = str | Mapping[str, Any] | None


@rewards.register("rouge")
def rouge(
    *,
    rouge_type: str = "rouge1",
    use_single_ref: bool | None = None,
    tokenizer: RougeTokenizer | None = None,
    shaping_fn: Shaping = None,
    compat: Compat = None,
) -> Reward:
    """One of ROUGE's F-measures: rouge1, rouge2, rougeL or rougeLsum."""
    if rouge_type not in ROUGE_TYPES:
        raise ConfigError(f"rouge_type must be one of {', '.join(ROUGE_TYPES)}, got {rouge_type!r}")
    metric = Rouge(use_single_ref=use_single_ref, tokenizer=tokenizer, compat=compat)
    return shaped(MetricReward(metric=metric, key=f"lexical/rouge_{rouge_type}", compat=compat), shaping_fn)


@rewards.register("rouge_combined")
@dataclass(kw_only=True)
class RougeCombined(Reward):
    """Mean of ROUGE-1, ROUGE-2 and ROUGE-L."""

    needs_references = True

    use_single_ref: bool | None = None
    """As of the metric `rouge`."""
    tokenizer: RougeTokenizer | None = None
    """As of the metric `rouge`."""

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> list[float]:
        """The mean for each sample."""
        metric = Rouge(use_single_ref=self.use_single_ref, tokenizer=self.tokenizer, compat=self.compat)
        figures = metric.compute(prompts, generations, references, meta)
        columns = [figures[f"lexical/rouge_{name}"].sentences or [] for name in ("rouge1", "rouge2", "rougeL")]
        return [sum(row) / len(row) for row in zip(*columns, strict=True)]

    def check(self) -> None:
        """The metric's library."""
        Rouge().check()


rewards.register("ter")(metric_as_reward(Ter, scale=-1.0, offset=1.0))
rewards.register("parent")(metric_as_reward(Parent, key="table_to_text/parent_overall_f_score"))
rewards.register("sentences_with_dates")(metric_as_reward(Dates))


@rewards.register("says_reference")
@dataclass(kw_only=True)
class SaysReference(TokenReward):
    """1 for the token that completes one of the references, blanks at the ends aside; for a whole text, 1 if it is one.

    What is written after it neither gains nor costs anything. (The reward of Lamorel's example of PPO on tokens.)
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
        """See `TokenReward`."""
        wanted = {reference.strip() for reference in references}
        return float(current.strip() in wanted and previous.strip() not in wanted)


@rewards.register("spider")
def spider(
    *,
    spice_coeff: float = 0.5,
    cider_coeff: float = 0.5,
    corpus: Sequence[Sequence[str]] | None = None,
    shaping_fn: Shaping = None,
    compat: Compat = None,
) -> Reward:
    """SPIDEr (Liu et al. 2017): weighted SPICE and CIDEr; needs Java."""
    parts = [
        (MetricReward(metric=Spice(compat=compat), compat=compat), spice_coeff),
        (MetricReward(metric=Cider(corpus=corpus, compat=compat), compat=compat), cider_coeff),
    ]
    return shaped(WeightedSum(parts=parts, compat=compat), shaping_fn)


@rewards.register("intent_accuracy")
@dataclass(kw_only=True)
class IntentReward(Reward):
    """Whether an answer has the intent that it should have, and how close it is to the reference by METEOR.

    The original's METEOR was the mean of all samples rewarded so far: with ``compat``.
    """

    needs_references = True

    intent_coeff: float = 1.0
    """Weight of the intent."""
    auto_coeff: float = 1.0
    """Weight of METEOR."""
    model_name: str = IntentAccuracy.model_name
    batch_size: int = 32
    device: str = "auto"

    _intent: IntentAccuracy = field(init=False, repr=False)
    _meteors: tuple[int, float] = field(default=(0, 0.0), init=False, repr=False)
    """With ``compat``, of all samples so far: how many, and the sum of their METEORs."""

    def __post_init__(self) -> None:
        """Name the classifier; nothing is loaded yet."""
        super().__post_init__()
        self.by_sample = self.compat is None
        self._intent = IntentAccuracy(
            model_name=self.model_name, batch_size=self.batch_size, device=self.device, compat=self.compat
        )

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> list[float]:
        """The weighted sum for each sample."""
        matches = self._intent.compute(prompts, generations, references, meta)["intent/accuracy"]
        figures = Meteor(compat=self.compat).compute(prompts, generations, references, meta)
        closeness = figures["lexical/meteor"].sentences or []
        if self.compat:
            closeness = [self._running_mean(score) for score in closeness]
        return [
            self.intent_coeff * match + self.auto_coeff * close
            for match, close in zip(matches.sentences or [], closeness, strict=True)
        ]

    def _running_mean(self, score: float) -> float:
        count, total = self._meteors
        self._meteors = count + 1, total + score
        return (total + score) / (count + 1)

    def check(self) -> None:
        """The classifier, WordNet."""
        self._intent.check()
        Meteor().check()

    def state_dict(self) -> dict[str, Any]:
        """The running mean of ``compat``."""
        return {"meteors": list(self._meteors)} if self.compat else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        if self.compat:
            count, total = state["meteors"]
            self._meteors = count, total
