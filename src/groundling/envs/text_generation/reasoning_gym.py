"""Reasoning Gym questions as a pool of prompts; the reward `reasoning_gym` verifies the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from groundling.envs.engines.reasoning_gym import questions
from groundling.envs.text_generation.pools import Pool, Sample, Split, pools


@pools.register("reasoning_gym")
@dataclass(kw_only=True)
class ReasoningGymPool(Pool):
    """Generated questions with verifiable answers. The reference is a correct answer.

    Args:
        dataset: Name of a dataset, such as ``letter_counting``.
        params: Arguments of the dataset.
        size: Number of questions in each split.
        prompt_suffix: Text after each question.
    """

    dataset: str = "letter_counting"
    params: Mapping[str, Any] | None = None
    size: Annotated[int, Ge(1)] = 1000
    prompt_suffix: str = "\n"

    def prepare(self, split: Split) -> Sequence[Sample]:
        entries = questions(self.dataset, split, self.size, self.params)
        return [self._sample(f"{split}_{index}", entries[index]) for index in range(self.size)]

    def _sample(self, id: str, entry: Mapping[str, Any]) -> Sample:
        references = () if entry["answer"] is None else (str(entry["answer"]),)  # some questions have many answers
        meta = {"dataset": self.dataset, "params": self.params, "entry": entry}
        question = entry["question"]
        return Sample(id, question + self.prompt_suffix, references, meta, data=(question,))
