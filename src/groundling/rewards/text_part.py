"""Any reward of texts as a part of a run's reward, also where nothing is written."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundling.arguments import taken
from groundling.envs.spec import Evidence
from groundling.errors import RunError
from groundling.io.documents import read_object
from groundling.rewards.part import Part, Surroundings, parts
from groundling.rewards.reward import Reward, rewards
from groundling.rewards.stretch import Captions, Stretch, Texts
from groundling.runtime.processes import Processes

_STATE = "state.json"


class TextPart(Part):
    """A reward of texts, of metrics, or a user's plain function.

    Of written texts it is what the reward gives for each token. Elsewhere the captions are the generations, their
    goals the prompts, and there are no references.

    Args:
        reward: What rewards; or a function that makes it of the language model under training, when that is there.

    Attributes:
        reward: What rewards; None until it is made.
    """

    needs: frozenset[Evidence] = frozenset({"captions"})

    def __init__(self, reward: Reward | Callable[[Any], Reward]) -> None:
        self._processes = Processes()
        self._make = None if isinstance(reward, Reward) else reward
        self.needs_model = self._make is not None
        self.reward: Reward | None = None
        if isinstance(reward, Reward):
            self._take(reward)

    def check(self) -> None:
        """What the reward needs."""
        if self.reward is not None:
            self.reward.check()

    def begin(self, run: Surroundings) -> None:
        """Make the reward that reads the language model under training.

        Raises:
            GroundlingError: what it needs is missing.
        """
        self._processes = run.processes
        if self._make is not None:
            if run.lm is None:
                raise RunError(
                    "a reward reads the language model under training, and this run has none: name one, args.lm=FOLDER"
                )
            self._take(self._make(run.lm))
            self.check()
        if run.samples:
            assert self.reward is not None
            self.reward.read_corpus(run.samples)

    def rewards(self, stretch: Stretch) -> Tensor:
        """float32 ``(num_steps, num_envs)``.

        Raises:
            RunError: a reward is missing or not finite.
        """
        if stretch.texts is not None:
            return self._at_tokens(stretch.texts).T
        assert stretch.captions is not None
        return stretch.spread(stretch.captions, self._of_captions(stretch.captions))

    def forget(self) -> None:
        assert self.reward is not None
        self.reward.load_state_dict(json.loads(self._fresh))

    def save(self, folder: Path) -> None:
        """``state.json``, if it remembers anything.

        Raises:
            RunError: JSON cannot hold it, or gives it back as something else.
        """
        assert self.reward is not None
        if state := self.reward.state_dict():
            (folder / _STATE).write_text(_written(state), encoding="utf-8")

    def load(self, folder: Path) -> None:
        assert self.reward is not None
        if (folder / _STATE).exists():
            self.reward.load_state_dict(read_object(folder / _STATE))

    def _take(self, reward: Reward) -> None:
        self.reward, self.per_token, self._fresh = reward, reward.per_token, _written(reward.state_dict())
        if reward.needs_references:
            self.needs = frozenset({"references"})

    def _at_tokens(self, texts: Texts) -> Tensor:
        """``(num_texts, longest)``. What depends on other texts, too, is asked about those of all processes at once."""
        assert self.reward is not None
        reward = self.reward
        if reward.by_sample:
            return _at_tokens(reward, texts)
        everyones = self._processes.gather(texts)
        together = Texts(*(_joined([getattr(t, name) for t in everyones]) for name in _COLUMNS))
        rewarded = self._processes.from_main(lambda: _at_tokens(reward, together))
        first = sum(len(t.prompts) for t in everyones[: self._processes.rank])
        longest = max(map(len, texts.so_far))
        return rewarded[first : first + len(texts.prompts), :longest]

    def _of_captions(self, captions: Captions) -> Tensor:
        """``(n,)``; of a reward that judges each sample by itself, equal ones are asked about once."""
        assert self.reward is not None
        reward, samples = self.reward, list(zip(captions.goals, captions.ids.tolist(), strict=True))
        if not reward.by_sample:
            everyones = self._processes.gather((captions.goals, captions.read(range(len(samples)))))
            columns = [_joined(column) for column in zip(*everyones, strict=True)]
            rewarded = self._processes.from_main(lambda: reward(columns[0], columns[1], [[]] * len(columns[0])))
            first = sum(len(goals) for goals, _ in everyones[: self._processes.rank])
            return rewarded[first : first + len(samples)]
        places = {sample: place for place, sample in reversed(list(enumerate(samples)))}
        rows = {sample: row for row, sample in enumerate(places)}
        texts = captions.read(list(places.values()))
        rewarded = reward([goal for goal, _ in places], texts, [[]] * len(texts))
        return rewarded[torch.tensor([rows[sample] for sample in samples])]


def _written(state: Mapping[str, Any]) -> str:
    """A reward's state as JSON; raise `RunError` where what is read of it would be something else."""
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise RunError(
            f"its state_dict() cannot be written as JSON ({error}): give numbers, texts, lists and mappings whose "
            "keys are texts"
        ) from error
    if json.loads(text) != _as_lists(state):
        raise RunError(
            f"its state_dict() comes back from JSON as something else, {text:.80}: give numbers but NaN, texts, lists "
            "and mappings whose keys are texts"
        )
    return text


def _as_lists(state: Any) -> Any:
    """With lists for tuples, as JSON has them."""
    if isinstance(state, Mapping):
        return {key: _as_lists(value) for key, value in state.items()}
    return [_as_lists(value) for value in state] if isinstance(state, list | tuple) else state


_COLUMNS = ("prompts", "so_far", "references", "meta", "tokens")


def _at_tokens(reward: Reward, texts: Texts) -> Tensor:
    ids = taken(reward.at_tokens, {"tokens": texts.tokens})
    return reward.at_tokens(texts.prompts, texts.so_far, texts.references, texts.meta, **ids)


def _joined(columns: Sequence[Sequence[Any]]) -> list[Any]:
    return [one for column in columns for one in column]


def _as_part(id: str) -> Callable[..., Part]:
    """A function that makes the reward ``id`` a part, with its arguments."""
    factory = rewards.get(id)
    signature = inspect.signature(factory)
    reads = "lm" in signature.parameters

    @functools.wraps(factory, updated=())
    def make(**args: Any) -> Part:
        if reads and args.get("lm") is None:
            return TextPart(lambda lm: rewards.create(id, **{**args, "lm": lm}))
        return TextPart(rewards.create(id, **args))

    made_by_run = [p.replace(default=None) if p.name == "lm" else p for p in signature.parameters.values()]
    make.__signature__ = signature.replace(parameters=made_by_run)  # type: ignore[attr-defined]
    make.__doc__ = inspect.getdoc(factory)
    make.needs = TextPart.needs  # type: ignore[attr-defined]
    return make


parts.adapt(rewards, _as_part)
