"""Any reward of texts as a part of a run's reward, also where nothing is written."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundling.envs.spec import Evidence
from groundling.errors import RunError
from groundling.processes import Processes
from groundling.rewards.experience import Captions, Experience, Texts
from groundling.rewards.part import Part, Surroundings, parts
from groundling.rewards.reward import Reward, rewards

_STATE = "state.json"


class TextPart(Part):
    """A reward of texts, of metrics, or a user's plain function.

    Of written texts it is what the reward gives for each token. Elsewhere the captions are the generations, their
    goals the prompts, and there are no references.

    Args:
        id: One of `groundling.rewards.rewards`.
        args: Its arguments. An argument called ``lm`` that is not among them receives the language model under
            training; the reward is then made when that is there.

    Attributes:
        reward: What rewards; None until it is made.
    """

    needs: frozenset[Evidence] = frozenset({"captions"})

    def __init__(self, id: str, args: Mapping[str, Any]) -> None:
        self._id, self._args = id, dict(args)
        self._processes = Processes()
        self.reward: Reward | None = None
        if not self._wants_lm():
            self._make({})

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
        if self.reward is None:
            if run.lm is None:
                raise RunError(
                    f"reward {self._id!r} reads the language model under training, and this run has none: name one, "
                    "args.lm=FOLDER"
                )
            self._make({"lm": run.lm})
            self.check()

    def rewards(self, experience: Experience) -> Tensor:
        """float32 ``(num_steps, num_envs)``.

        Raises:
            RunError: a reward is missing or not finite.
        """
        if experience.texts is not None:
            return self._at_tokens(experience.texts).T
        assert experience.captions is not None
        return experience.at_captions(self._of_captions(experience.captions))

    def forget(self) -> None:
        assert self.reward is not None
        self.reward.load_state_dict(self._fresh)

    def save(self, folder: Path) -> None:
        """``state.json``, if it remembers anything."""
        assert self.reward is not None
        if state := self.reward.state_dict():
            (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder: Path) -> None:
        assert self.reward is not None
        if (folder / _STATE).exists():
            self.reward.load_state_dict(json.loads((folder / _STATE).read_text(encoding="utf-8")))

    def _wants_lm(self) -> bool:
        return "lm" in inspect.signature(rewards.get(self._id)).parameters and "lm" not in self._args

    def _make(self, more: Mapping[str, Any]) -> None:
        self.reward = rewards.create(self._id, **more, **self._args)
        self.per_token, self._fresh = self.reward.per_token, self.reward.state_dict()
        if self.reward.needs_references:
            self.needs = frozenset({"references"})

    def _at_tokens(self, texts: Texts) -> Tensor:
        """``(num_texts, longest)``. What depends on other texts, too, is asked about those of all processes at once."""
        assert self.reward is not None
        reward = self.reward
        if reward.by_sample:
            return reward.at_tokens(texts.prompts, texts.so_far, texts.references, texts.meta)
        everyones = self._processes.gather(texts)
        together = Texts(*(_joined([getattr(t, name) for t in everyones]) for name in _COLUMNS))
        rewarded = self._processes.from_main(
            lambda: reward.at_tokens(together.prompts, together.so_far, together.references, together.meta)
        )
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
            rewarded = self._processes.from_main(lambda: reward(*columns, [[]] * len(columns[0])))
            first = sum(len(own) for own, _ in everyones[: self._processes.rank])
            return rewarded[first : first + len(samples)]
        places = {sample: place for place, sample in reversed(list(enumerate(samples)))}
        rows = {sample: row for row, sample in enumerate(places)}
        texts = captions.read(list(places.values()))
        rewarded = reward([goal for goal, _ in places], texts, [[]] * len(texts))
        return rewarded[torch.tensor([rows[sample] for sample in samples])]


_COLUMNS = ("prompts", "so_far", "references", "meta")


def _joined(columns: Sequence[Sequence[Any]]) -> list[Any]:
    return [one for column in columns for one in column]


def _as_part(id: str) -> Callable[..., Part]:
    """A function that makes the reward ``id`` a part, with its arguments."""
    factory = rewards.get(id)

    @functools.wraps(factory, updated=())
    def make(**args: Any) -> Part:
        return TextPart(id, args)

    signature = inspect.signature(factory)
    made_by_run = [p.replace(default=None) if p.name == "lm" else p for p in signature.parameters.values()]
    make.__signature__ = signature.replace(parameters=made_by_run)  # type: ignore[attr-defined]
    make.__doc__ = inspect.getdoc(factory)
    make.needs = TextPart.needs  # type: ignore[attr-defined]
    return make


parts.adapt(rewards, _as_part)
