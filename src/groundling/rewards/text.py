"""Text rewards built on metrics, and `TextPart`, which turns a text reward into a part of a run's reward."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from groundling.envs.text_env import Evidence
from groundling.errors import ConfigError, RunError
from groundling.fields import Ge
from groundling.io.documents import read_object
from groundling.metrics.bleu import Cider, Spice
from groundling.metrics.matching import ROUGE_TYPES, Meteor, Rouge
from groundling.metrics.metric import Meta, References, Scorer, Texts
from groundling.metrics.models import IntentAccuracy
from groundling.metrics.parent import Parent
from groundling.metrics.text_statistics import Dates
from groundling.rewards.composite import WeightedSum
from groundling.rewards.part import (
    Captions,
    GeneratedTexts,
    Part,
    Reward,
    RewardContext,
    RewardInputs,
    TokenReward,
    parts,
)
from groundling.rewards.registry import rewards
from groundling.runtime.processes import Processes

rewards.register("parent")(Parent)
rewards.register("sentences_with_dates")(Dates)


@rewards.register("rouge")
def rouge(
    *, rouge_type: str = "rouge1", use_single_ref: bool | None = None, compat: Literal["rl4lms"] | None = None
) -> Rouge:
    """One of ROUGE's F-measures as a reward."""
    if rouge_type not in ROUGE_TYPES:
        raise ConfigError(f"rouge_type must be one of {', '.join(ROUGE_TYPES)}, got {rouge_type!r}")
    metric = Rouge(use_single_ref=use_single_ref, compat=compat)
    metric.reward_options = replace(metric.reward_options, key=f"lexical/rouge_{rouge_type}")
    return metric


@rewards.register("rouge_combined")
@dataclass(kw_only=True)
class RougeCombined(Reward):
    """Mean of ROUGE-1, ROUGE-2 and ROUGE-L."""

    needs_references = True

    use_single_ref: bool | None = None
    """See the metric `rouge`."""

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        metric = Rouge(use_single_ref=self.use_single_ref, compat=self.compat)
        figures = metric.compute(prompts, generations, references, meta)
        columns = [figures[f"lexical/rouge_{name}"].sentences or [] for name in ("rouge1", "rouge2", "rougeL")]
        return [sum(row) / len(row) for row in zip(*columns, strict=True)]

    def check(self) -> None:
        Rouge().check()


@rewards.register("says_reference")
@dataclass(kw_only=True)
class SaysReference(TokenReward):
    """1 for the token that completes one of the references; for whole texts, 1 if the text equals a reference.
    Leading and trailing whitespace is ignored; later tokens get no reward. (From Lamorel's token-level PPO example.)
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
    """SPIDEr (Liu et al. 2017): weighted sum of SPICE and CIDEr; needs Java."""
    parts: list[tuple[Scorer, float]] = [
        (Spice(compat=compat), spice_coeff),
        (Cider(corpus=corpus, compat=compat), cider_coeff),
    ]
    return WeightedSum(parts=parts, compat=compat)


@rewards.register("intent_accuracy")
@dataclass(kw_only=True)
class IntentReward(Reward):
    """1 if an answer has the correct intent, plus its METEOR score.
    With ``compat``, METEOR is the mean over all samples rewarded so far, as in RL4LMs.
    """

    needs_references = True

    intent_coeff: float = 1.0
    """Weight of the intent's correctness."""
    auto_coeff: float = 1.0
    """Weight of METEOR."""
    model_name: str = IntentAccuracy.model_name
    batch_size: Annotated[int, Ge(1)] = 32
    device: str = "auto"

    _intent: IntentAccuracy = field(init=False, repr=False)
    _meteors: tuple[int, float] = field(default=(0, 0.0), init=False, repr=False)
    """With ``compat``, the number and sum of METEOR scores so far."""

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


_STATE = "state.json"


class TextPart(Part):
    """A text reward, a metric or a user's function as a reward part. Generated texts are scored per token. In other
    worlds, captions are scored, with goals as prompts. ``reward`` may be a factory that accepts the trained model.
    """

    needs: frozenset[Evidence] = frozenset({"captions"})
    reward: Scorer

    def __init__(self, reward: Scorer | Callable[[Any], Scorer]) -> None:
        self._processes = Processes()
        self._make = None if isinstance(reward, Scorer) else reward
        self.needs_model = self._make is not None
        if isinstance(reward, Scorer):
            self._use(reward)

    def check(self) -> None:
        if hasattr(self, "reward"):
            self.reward.check()

    def begin(self, context: RewardContext) -> None:
        self._processes = context.processes
        if self._make is not None:
            if context.lm is None:
                raise RunError("a reward needs the trained language model, but there is none: set args.lm=FOLDER")
            self._use(self._make(context.lm))
            self.check()
        if context.samples:
            self.reward.read_corpus(context.samples)

    def rewards(self, inputs: RewardInputs) -> Tensor:
        if inputs.texts is not None:
            return self._scores(inputs.texts).T
        assert inputs.captions is not None
        return inputs.spread(inputs.captions, self._of_captions(inputs.captions))

    def figures(self) -> dict[str, int]:
        return self.reward.figures()

    def forget(self) -> None:
        self.reward.load_state_dict(json.loads(self._initial_state))

    def save(self, folder: Path) -> None:
        if state := self.reward.state_dict():
            (folder / _STATE).write_text(_as_json(state), encoding="utf-8")

    def load(self, folder: Path) -> None:
        if (folder / _STATE).exists():
            self.reward.load_state_dict(read_object(folder / _STATE))

    def _use(self, reward: Scorer) -> None:
        self.reward, self.per_token = reward, reward.per_token
        self._initial_state = _as_json(reward.state_dict())
        if reward.needs_pool:
            self.needs = frozenset({"references"})

    def _of_captions(self, captions: Captions) -> Tensor:
        """Return scores ``(n,)``; equal samples are scored only once, unless scores depend on other samples."""
        samples: Sequence[Any] = list(zip(captions.goals, captions.ids.tolist(), strict=True))
        if not self.reward.by_sample:
            samples = range(len(samples))
        places = {sample: place for place, sample in reversed(list(enumerate(samples)))}
        rows = {sample: row for row, sample in enumerate(places)}
        goals = [captions.goals[place] for place in places.values()]
        texts = [[text] for text in captions.read(list(places.values()))]
        scores = self._scores(GeneratedTexts(goals, texts, [[]] * len(texts), [{}] * len(texts)))[:, 0]
        return scores[torch.tensor([rows[sample] for sample in samples])]

    def _scores(self, texts: GeneratedTexts) -> Tensor:
        """Return scores ``(num_texts, longest)``; if they depend on other samples, gather those of all processes."""

        def score(given: GeneratedTexts) -> Tensor:
            return self.reward.at_tokens(given.prompts, given.so_far, given.references, given.meta, given.tokens)

        if self.reward.by_sample:
            return score(texts)
        everyones = self._processes.gather(texts)
        columns = ([getattr(one, f.name) for one in everyones] for f in fields(GeneratedTexts))
        together = GeneratedTexts(*([entry for column in same for entry in column] for same in columns))
        scores = self._processes.from_main(lambda: score(together))
        first = sum(len(one.prompts) for one in everyones[: self._processes.rank])
        return scores[first : first + len(texts.prompts), : max(map(len, texts.so_far))]


def _as_json(state: Mapping[str, Any]) -> str:
    """Return a reward's state as JSON; raise `RunError` if decoding it would not restore the same state."""
    try:
        text = json.dumps(state)
        is_same = json.loads(text) == state
    except (TypeError, ValueError):
        is_same = False
    if not is_same:
        raise RunError(f"its state_dict() must be valid JSON (no NaN, no tuples, only string keys), got {state!r:.80}")
    return text


parts.adapt(rewards, rewards.get)
