"""Rewards of captions by a reward model (Motif, arXiv 2310.00166), which a judge may train meanwhile (ONI)."""

import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.fields import Ge, MayChangeOnResume, TrainingOnly
from groundling.io.documents import SETTINGS, read_object
from groundling.judges.online.reward import OnlineReward
from groundling.judges.reward_models import RewardModel, load_reward_model
from groundling.judges.reward_models.reward_model import DESCRIPTION, Normalization
from groundling.metrics.metric import Meta, References, Scorer, Texts
from groundling.rewards.online_judge import OnlineJudge
from groundling.rewards.part import Part, Reward, RewardContext, RewardInputs, parts
from groundling.rewards.registry import RewardTable, create_within, rewards
from groundling.runtime.devices import find_device
from groundling.runtime.parallel import end_with

MODEL = "model"  # In the part's folder of a checkpoint, the folder of a reward model that is trained online
_TABLE, _ANSWERS = "table.safetensors", "answers.safetensors"
_IDENTITY = Normalization(0.0, 1.0, ())


@parts.register("reward_model")
@dataclass(kw_only=True)
class RewardModelPart(Part):
    """A reward model's output for captions: normalised, 0 below a quantile, reduced for repetitions."""

    needs = frozenset({"captions"})

    path: Annotated[str | None, MayChangeOnResume] = None
    """Folder that `groundling distill` wrote (may move on resume); null: a new model that the online judge trains."""
    normalize: bool = True
    """Shift and scale the model's rewards to mean 0 and deviation 1 over its training captions."""
    threshold_quantile: float = 0.5
    """Rewards up to this quantile of the distinct training captions' rewards become 0: 0.05 to 0.95; 0: no threshold.
    (In the original "0.0" could not be chosen, and the default -0.5 was no quantile.)"""
    count_exponent: Annotated[float, Ge(0)] = 3.0
    """The reward of the n-th occurrence of a caption in an episode is divided by n to this power."""
    online: Annotated[OnlineJudge | dict[str, Any] | None, TrainingOnly] = None
    """Fields of `OnlineJudge`, which trains the model during training; null: the model is fixed."""

    def __post_init__(self) -> None:
        if self.threshold_quantile != 0 and not 0.05 <= self.threshold_quantile <= 0.95:
            raise ConfigError(
                f"threshold_quantile must be 0 (no threshold) or lie between 0.05 and 0.95, got "
                f"{self.threshold_quantile}"
            )
        self._judge = None if self.online is None else OnlineJudge.of(self.online, self.path)
        self._table: RewardTable | None = None
        self._online: OnlineReward | None = None

    def accepts(self, world: WorldSpec) -> str | None:
        """Also check that the model was distilled in such a world, and that the judge suits it."""
        reason = super().accepts(world) or self._model_refusal(world)
        if reason or self._judge is None:
            return reason
        return self._judge.refusal(world.subject)

    def _model_refusal(self, world: WorldSpec) -> str | None:
        """Return why the model does not suit the world, as far as it says where it was distilled."""
        description = None if self.path is None else Path(self.path) / DESCRIPTION
        if description is None or not description.is_file():
            return None  # `check` raises the error
        try:
            distilled: str = read_object(description, SETTINGS)["about"].get("world", world.subject)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{description} cannot be read: {error!r}") from error
        if distilled == world.subject:
            return None
        return f"{self.path} was distilled from pairs of the world {distilled!r}, and this is {world.subject!r}"

    def check(self) -> None:
        if self.path is None and self._judge is None:
            raise ConfigError(
                "a reward model is missing: set path=FOLDER, as `groundling distill` wrote it ('Motif' in the docs), "
                "or online.judge=ID, or take the part out"
            )
        if self.path is not None and not (Path(self.path) / DESCRIPTION).is_file():
            load_reward_model(self.path)  # raises the error

    def check_normalization(self, normalization: Normalization | None) -> None:
        """Raise `ConfigError` if the options need a normalisation that the reward model lacks."""
        if normalization is None and (self.normalize or self.threshold_quantile):
            raise ConfigError(
                "this reward model gives labels 0 and 1, which have no mean and quantiles to normalise with: set "
                "normalize=false and threshold_quantile=0"
            )

    def begin(self, context: RewardContext) -> None:
        device = find_device(context.device)
        if self.path is not None:
            model = load_reward_model(self.path, device)
        else:
            assert self._judge is not None
            model = self._judge.new_model(context).to(device).eval()
        self.use(model, None if self._judge is None else self._judge.teach(model, context))

    def use(self, model: RewardModel, online: OnlineReward | None = None) -> None:
        """Reward by ``model``, which ``online`` trains; raise `ConfigError` if it does not fit the options."""
        self._table, self._online = RewardTable(model), online
        self.check_normalization(model.normalization)

    def rewards(self, inputs: RewardInputs) -> Tensor:
        captions, table = inputs.judged or inputs.captions, self._table
        assert captions is not None and table is not None
        if self._online is not None:
            self._online.observe(captions.ids, captions.read, captions.goals, captions.contexts)
            self._online.update()  # the table notices the model's new version
        raw = table(captions.ids, captions.read)
        return inputs.spread(captions, self.transform(raw, captions.counts, table.model.normalization))

    def transform(self, rewards: Tensor, counts: Tensor, normalization: Normalization | None) -> Tensor:
        """r̂ = (r - mean) / √variance;   r̂ · [r̂ > ε] / N(caption)^β   (section 3 and appendix of Motif's paper).
        ε is a quantile of the model's rewards, normalised or not; ``counts`` are N, of the shape of ``rewards``.
        """
        self.check_normalization(normalization)
        spread = normalization or _IDENTITY
        threshold = spread.threshold(self.threshold_quantile) if self.threshold_quantile else -math.inf
        if self.normalize:
            rewards = (rewards - spread.mean) / math.sqrt(spread.variance)
        else:
            threshold = spread.mean + threshold * math.sqrt(spread.variance)
        kept = torch.where(rewards > threshold, rewards, 0.0)
        return kept / counts.to(kept) ** self.count_exponent

    def figures(self) -> dict[str, int]:
        return {} if self._online is None else self._online.figures()

    def save(self, folder: Path) -> None:
        assert self._table is not None
        save_file(self._table.state_dict(), folder / _TABLE)
        if self._online is not None:
            self._online.model.save(folder / MODEL)
            save_file(self._online.state_dict(), folder / _ANSWERS)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; raise `ConfigError` if it is of another reward model."""
        assert self._table is not None
        if self._online is not None:
            model, saved = self._online.model, load_reward_model(folder / MODEL)
            if (saved.id, saved.args) != (model.id, model.args):
                raise ConfigError(
                    f"{folder} holds a reward model of the kind {saved.id} {saved.args}, the run now has {model.id} "
                    f"{model.args}: set the part's path to what it was, or run_dir to a new folder"
                )
            model.take_up(saved)
            self._online.load_state_dict(load_file(folder / _ANSWERS))
        table = load_file(folder / _TABLE)
        if self._online is None and not has_rewarded(self._table.model, folder):
            raise ConfigError(
                f"{folder} was trained with another reward model than {self.path}, and another reward would be learnt "
                "from here on: bring the first one back, or set run_dir to a new folder"
            )
        self._table.load_state_dict(table)

    def close(self) -> None:
        if self._online is not None:
            self._online.close()


def has_rewarded(model: RewardModel, folder: Path) -> bool:
    """Return True if the part's ``folder`` in a checkpoint has a table of this ``model``'s rewards."""
    try:
        with safe_open(folder / _TABLE, "pt") as table:
            version: Any = table.get_tensor("version").tolist()
    except (OSError, SafetensorError):
        return False
    return bool(version == model.version)


_SAMPLES_PER_JOB = 4  # Few, as TER takes a thousand times longer for some texts than for others

Sample = tuple[str, str, Sequence[str], Mapping[str, Any]]  # Prompt, generation, references and meta


@rewards.register("pooled")
@dataclass(kw_only=True)
class Pooled(Reward):
    """``reward``, computed in several processes and cached by sample.
    Meant for TER of long texts (a second per sample); other lexical rewards take milliseconds. Processes start at the
    first call, and each keeps the model that the reward loads. Rewards that depend on other samples (CIDEr) are
    refused.
    """

    reward: Any
    """A mapping with an ``id`` and its ``args``; in Python also a reward."""
    num_processes: Annotated[int, Ge(0)] = 0
    """0: only this process."""
    remembered: Annotated[int, Ge(0)] = 100_000
    """Number of samples whose rewards are cached; the oldest are dropped."""

    _inner: Scorer = field(init=False, repr=False)
    _cache: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _pool: ProcessPoolExecutor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.reward
        if isinstance(given, Scorer):
            self._inner = given
        elif isinstance(given, Mapping) and "id" in given and not set(given) - {"id", "args"}:
            self._inner = create_within(self.compat, given["id"], given.get("args"))
        else:
            raise ConfigError(f"pooled needs reward={{id: …, args: {{…}}}}, got {given!r}")
        if not self._inner.by_sample or self._inner.per_token:
            raise ConfigError(f"{self._inner.name} cannot be pooled: it does not judge each sample by itself")
        self.needs_references = self._inner.needs_pool

    def check(self) -> None:
        self._inner.check()

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        samples = list(zip(prompts, generations, references, meta or [{}] * len(prompts), strict=True))
        keys = [repr((prompt, text, list(given), more)) for prompt, text, given, more in samples]
        new = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in self._cache}
        self._cache |= zip(new, self._score_new(list(new.values())), strict=True)
        scores = [self._cache[key] for key in keys]
        for key in [*islice(self._cache, max(0, len(self._cache) - self.remembered))]:
            del self._cache[key]
        return scores

    def _score_new(self, samples: Sequence[Sample]) -> list[float]:
        if not self.num_processes:
            return _score(self._inner, samples) if samples else []
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.num_processes, multiprocessing.get_context("spawn"), _start, (os.getpid(), self._inner)
            )
        jobs = [samples[i : i + _SAMPLES_PER_JOB] for i in range(0, len(samples), _SAMPLES_PER_JOB)]
        return [score for scores in self._pool.map(_score_in_worker, jobs) for score in scores]


def _score(reward: Scorer, samples: Sequence[Sample]) -> list[float]:
    return list(map(float, reward(*map(list, zip(*samples, strict=True)))))


_worker_reward: Scorer  # In a worker process: the reward, kept from job to job with the model that it has loaded


def _start(parent: int, reward: Scorer) -> None:
    end_with(parent)
    global _worker_reward
    _worker_reward = reward
    torch.set_num_threads(1)


def _score_in_worker(samples: Sequence[Sample]) -> list[float]:
    return _score(_worker_reward, samples)
