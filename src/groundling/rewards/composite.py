"""Text rewards built from other rewards (weighted sums, process pools), and the rewards of CommonGen."""

import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import MinLen
from torch import Tensor

from groundling.envs.text_generation.pools import Sample
from groundling.envs.text_generation.tasks import words
from groundling.errors import ConfigError, RunError
from groundling.fields import Ge
from groundling.metrics.matching import Meteor
from groundling.metrics.metric import Meta, References, Scorer, Texts, check_library, check_model, library, load_model
from groundling.registry import taken
from groundling.rewards.part import Reward
from groundling.rewards.registry import rewards
from groundling.runtime.parallel import end_with


@rewards.register("weighted_sum")
@dataclass(kw_only=True)
class WeightedSum(Reward):
    """Weighted sum of rewards, which is a per-token reward if any of them is."""

    parts: Sequence[Any]
    """Mappings with ``id``, ``args`` and ``weight`` (default 1) or, in Python, pairs of a reward and its weight."""

    terms: list[tuple[Scorer, float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.parts or not isinstance(self.parts, Sequence):
            raise ConfigError(f"weighted_sum needs rewards [{{id: …, args: {{…}}, weight: …}}], got {self.parts!r}")
        self.terms = []
        for part in self.parts:
            reward, weight = part, 1.0
            if isinstance(part, tuple):
                reward, weight = part
            elif isinstance(part, Mapping):
                reward = {name: value for name, value in part.items() if name != "weight"}
                weight = part.get("weight", 1.0)
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigError(f"a weight in weighted_sum must be a finite number, got {weight!r}")
            self.terms.append((create_within(self.compat, reward, "weighted_sum"), float(weight)))
        self.per_token = any(reward.per_token for reward, _ in self.terms)
        self.by_sample = all(reward.by_sample for reward, _ in self.terms)
        self.needs_references = any(reward.needs_pool for reward, _ in self.terms)

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Tensor:
        return self._sum(lambda reward: reward(prompts, generations, references, meta))

    def at_tokens(
        self,
        prompts: Texts,
        texts: Sequence[Texts],
        references: References,
        meta: Meta = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        return self._sum(lambda reward: reward.at_tokens(prompts, texts, references, meta, tokens))

    def _sum(self, value: Callable[[Scorer], Tensor]) -> Tensor:
        return torch.stack([weight * value(reward) for reward, weight in self.terms]).sum(0)

    def check(self) -> None:
        for reward, _ in self.terms:
            reward.check()

    def read_corpus(self, samples: Sequence[Sample]) -> None:
        for reward, _ in self.terms:
            reward.read_corpus(samples)

    def state_dict(self) -> dict[str, Any]:
        return {str(place): reward.state_dict() for place, (reward, _) in enumerate(self.terms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for place, (reward, _) in enumerate(self.terms):
            reward.load_state_dict(state[str(place)])


def create_within(compat: str | None, given: Any, owner: str) -> Scorer:
    """Create the reward ``given``, a mapping with ``id`` and ``args``; its ``compat`` defaults to the owner's."""
    if isinstance(given, Scorer):
        return given
    if not isinstance(given, Mapping) or "id" not in given or set(given) - {"id", "args"}:
        raise ConfigError(f"{owner} expects a reward as {{id: …, args: {{…}}}}, got {given!r:.80}")
    id, args = given["id"], given.get("args") or {}
    if not isinstance(args, Mapping):
        raise ConfigError(f"the args of reward {id!r} must be a mapping, {{name: value}}, got {args!r}")
    return rewards.create(id, **taken(rewards.get(id), {"compat": compat}) | dict(args))


_SAMPLES_PER_JOB = 4  # Kept small, because TER takes a thousand times longer for some texts than for others
_worker_reward: Scorer  # The reward in a worker process, kept between jobs together with its model


@rewards.register("pooled")
@dataclass(kw_only=True)
class Pooled(Reward):
    """A reward computed in several processes, which start on the first call.
    It is meant for TER on long texts (a second per sample). Rewards that depend on other samples (CIDEr) are rejected.
    """

    reward: Any
    """A mapping with ``id`` and ``args``; in Python, it may also be a reward."""
    num_processes: Annotated[int, Ge(1)] = 2

    _inner: Scorer = field(init=False, repr=False)
    _pool: ProcessPoolExecutor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._inner = create_within(self.compat, self.reward, "pooled")
        if not self._inner.by_sample or self._inner.per_token:
            raise ConfigError(f"{self._inner.name} cannot be pooled: it does not score each sample independently")
        self.needs_references = self._inner.needs_pool

    def check(self) -> None:
        self._inner.check()

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.num_processes, multiprocessing.get_context("spawn"), _start, (os.getpid(), self._inner)
            )
        samples = list(zip(prompts, generations, references, meta or [{}] * len(prompts), strict=True))
        jobs = [samples[i : i + _SAMPLES_PER_JOB] for i in range(0, len(samples), _SAMPLES_PER_JOB)]
        return [score for scores in self._pool.map(_score_in_worker, jobs) for score in scores]


def _start(parent: int, reward: Scorer) -> None:
    end_with(parent)
    global _worker_reward
    _worker_reward = reward
    torch.set_num_threads(1)


def _score_in_worker(samples: Sequence[tuple[Any, ...]]) -> list[float]:
    """Score (prompt, generation, references, meta) samples."""
    return _worker_reward(*map(list, zip(*samples, strict=True))).tolist()


PREFIX = "generate a sentence with:"  # Prefix of RL4LMs' prompts


@rewards.register("common_gen_repeat_penalty_batched")
@rewards.register("common_gen_repeat_penalty")
@dataclass(kw_only=True)
class RepeatPenalty(Reward):
    """-1 for a sentence that repeats its prompt (the list of concepts, the prefix, or the wording of the task)."""

    prefix: Annotated[str, MinLen(1)] = PREFIX

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        scores = []
        for index, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
            prefix = self.prefix.strip().lower()
            listed = prompt.lower().partition(prefix)[2].strip().rstrip(".").strip()  # the prompt's concepts
            forbidden = {prefix, "generate", "sentence", listed}
            if meta is not None and "concepts" in meta[index]:
                forbidden.add(" ".join(concepts(meta[index]["concepts"])).lower())
            text = generation.lower()
            scores.append(-1.0 if any(part in text for part in forbidden if part) else 0.0)
        return scores


def concepts(given: Any) -> list[str]:
    """Return the concepts of a sample's meta, which may be a list or a single string."""
    return given.split() if isinstance(given, str) else [str(concept) for concept in given]


@rewards.register("common_gen_preference_model")
@dataclass(kw_only=True)
class PreferenceModel(Reward):
    """P(good) from an encoder-decoder model trained on human preferences, reduced if concepts are missing.
    The reward is P(good) / (1 + ``missing_coeff`` · number of missing concepts) + ``meteor_coeff`` · METEOR. It needs
    ``meta["concepts"]``. A concept is missing if no generated word has its stem.
    """

    needs_references = True

    model_name: str | None = None
    """Folder or hub id of a T5-like model that answers with one of two words; the authors' model is not on the hub."""
    model_type: str = "11b"
    """Size of the authors' model, as in RL4LMs' configs; used only in an error message."""
    good: str = "good"
    bad: str = "bad"
    template: str = "{concepts} || {generation}"
    """Template of the model's input."""
    missing_coeff: float = 1.0
    meteor_coeff: float = 0.0
    batch_size: Annotated[int, Ge(1)] = 8
    device: str = "auto"

    _loaded: Any = field(default=None, init=False, repr=False)

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Tensor:
        if meta is None or any("concepts" not in sample for sample in meta):
            raise RunError("common_gen_preference_model needs 'concepts' in the meta of every sample")
        wanted = [concepts(sample["concepts"]) for sample in meta]
        texts = [  # without `str.format`, since a field's width in an untrusted template could exhaust memory
            self.template.replace("{concepts}", " ".join(given)).replace("{generation}", generation)
            for given, generation in zip(wanted, generations, strict=True)
        ]
        missing = torch.tensor([_missing(*pair) for pair in zip(wanted, generations, strict=True)])
        preference = self._probabilities(texts) / (1 + self.missing_coeff * missing)
        if not self.meteor_coeff:
            return preference
        meteor = Meteor(compat=self.compat).compute(prompts, generations, references, meta)["lexical/meteor"]
        return preference + self.meteor_coeff * torch.tensor(meteor.sentences)

    def _probabilities(self, texts: Sequence[str]) -> Tensor:
        """Return the probability of the good word's first token relative to the bad one's, float32 ``(batch,)``."""
        self.check()
        if self._loaded is None:
            self._loaded = load_model("preference model", str(self.model_name), "AutoModelForSeq2SeqLM", self.device)
        tokenizer, model = self._loaded
        answers = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (self.good, self.bad)]
        if answers[0] == answers[1] or tokenizer.unk_token_id in answers:
            raise ConfigError(
                f"the tokenizer of {self.model_name} cannot distinguish good={self.good!r} from bad={self.bad!r} by "
                f"their first tokens, {tokenizer.convert_ids_to_tokens(answers)}: choose different words"
            )
        device = model.get_input_embeddings().weight.device
        rows = []
        for first in range(0, len(texts), self.batch_size):
            inputs = tokenizer(
                list(texts[first : first + self.batch_size]), padding=True, truncation=True, return_tensors="pt"
            )
            start = torch.full((len(inputs["input_ids"]), 1), model.config.decoder_start_token_id)
            with torch.inference_mode():
                output = model(
                    input_ids=inputs["input_ids"].to(device),
                    attention_mask=inputs["attention_mask"].to(device),
                    decoder_input_ids=start.to(device),
                )
            rows.append(output.logits[:, 0, answers].float().softmax(-1)[:, 0].cpu())
        return torch.cat(rows)

    def check(self) -> None:
        if self.model_name is None:
            raise ConfigError(
                f"common_gen_preference_model needs model_name=FOLDER: the authors' {self.model_type} model is not "
                "on the hub; its download link is in the README of github.com/allenai/RL4LMs"
            )
        check_model("preference model", self.model_name)
        check_library("nltk")
        if self.meteor_coeff:
            Meteor().check()


def _missing(wanted: Sequence[str], generation: str) -> int:
    """Return the number of concepts whose stem does not occur among the generation's words."""
    stem = library("nltk.stem.porter").PorterStemmer().stem
    stems = {stem(word.lower()) for word in words(generation)}
    return sum(stem(concept.lower()) not in stems for concept in wanted)
