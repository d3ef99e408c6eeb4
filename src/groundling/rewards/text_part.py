"""Rewards of texts as parts of a run's reward, in every world."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundling.arguments import provided
from groundling.envs.spec import Evidence
from groundling.errors import RunError
from groundling.io.documents import read_object
from groundling.metrics.scorer import Scorer
from groundling.rewards.inputs import Captions, GeneratedTexts, RewardInputs
from groundling.rewards.part import Part, RewardContext, parts
from groundling.rewards.registry import rewards
from groundling.runtime.processes import Processes

_STATE = "state.json"


class TextPart(Part):
    """A reward of texts, a metric, or a user's function; ``reward`` may make it from the trained language model.
    It scores generated texts token by token. In other worlds the captions are the generations, their goals the
    prompts, without references.
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
                raise RunError(
                    "a reward reads the language model under training, and this run has none: name one, args.lm=FOLDER"
                )
            self._use(self._make(context.lm))
            self.check()
        if context.samples:
            self.reward.read_corpus(context.samples)

    def rewards(self, inputs: RewardInputs) -> Tensor:
        if inputs.texts is not None:
            return self._scores(inputs.texts).T
        assert inputs.captions is not None
        return inputs.spread(inputs.captions, self._of_captions(inputs.captions))

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
        """``(n,)``; equal samples are scored once if scores do not depend on other samples."""
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
        """``(num_texts, longest)``; if scores depend on other samples, those of all processes are scored together."""
        reward = self.reward
        if reward.by_sample:
            return _at_tokens(reward, texts)
        everyones = self._processes.gather(texts)
        columns = ([getattr(one, f.name) for one in everyones] for f in fields(GeneratedTexts))
        together = GeneratedTexts(*([entry for column in same for entry in column] for same in columns))
        scores = self._processes.from_main(lambda: _at_tokens(reward, together))
        first = sum(len(one.prompts) for one in everyones[: self._processes.rank])
        return scores[first : first + len(texts.prompts), : max(map(len, texts.so_far))]


def _at_tokens(reward: Scorer, texts: GeneratedTexts) -> Tensor:
    return reward.at_tokens(texts.prompts, texts.so_far, texts.references, texts.meta, texts.tokens)


def _as_json(state: Mapping[str, Any]) -> str:
    """A reward's state as JSON; raise `RunError` if it would be read back as something else."""
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise RunError(
            f"its state_dict() cannot be written as JSON ({error}): give numbers, texts, lists and mappings whose "
            "keys are texts"
        ) from error
    if json.loads(text) != state:
        raise RunError(
            f"its state_dict() comes back from JSON as something else, {text:.80}: give numbers but NaN, texts, lists "
            "and mappings whose keys are texts"
        )
    return text


parts.adapt(rewards, rewards.get)


def create_part(id: str, args: Mapping[str, Any]) -> Part:
    """Make the part ``id``; a reward of texts becomes a `TextPart`.
    If it takes the language model under training, and ``args`` name no other, it is made in `Part.begin`.
    """
    if id in parts.in_order():
        part: Part = parts.create(id, **args)
        return part
    takes_model = [name for name, one in provided(rewards.get(id)).items() if one.role == "lm"]
    if takes_model and args.get(takes_model[0]) is None:
        return TextPart(lambda lm: rewards.create(id, **{**args, takes_model[0]: lm}))
    return TextPart(rewards.create(id, **args))
