"""Signs that a run is not learning, in its first updates and in its returns, with the first setting to change."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Column, Table

from groundling.algorithms.rollout import Rollout
from groundling.config.schema import Config
from groundling.io.row_files import RowFile, read_rows
from groundling.policies.policy import Policy, Turn, policies
from groundling.policies.prompt_policy import LanguageModelPolicy
from groundling.registry import named_parameters
from groundling.training.tracking import read_metrics

UPDATES = 2  # Number of initial updates that are examined
FILE = "diagnosis.jsonl"  # File in the run's folder with measurements of these updates
_OBSERVATIONS = 64  # Number of observations for which the action probabilities are compared
_LOW_ENTROPY, _LOW_TOKEN_ENTROPY = 0.1, 0.05  # As a fraction of the uniform distribution's; in nats per token
_SUCCESS = 0.95  # A policy that succeeds this often may have a low entropy
_SAME_EVERYWHERE, _UNIFORM = 0.01, 0.9  # Dependence on the observation, and entropy of the mean, relative to uniform
_CLIPPED, _VANISHED = 1000.0, 1e-7  # Gradient norm relative to max_grad_norm and the critic's error, and absolute
_STILL, _TORN = 1e-5, 0.5  # approx_kl below which a policy hardly moves, and from which an update replaces it
_MOST = 0.9  # Share of groups that counts as most
_LONG_TEXT, _UNKNOWN = 1.2, 0.05  # Tokens per character in an unknown script, and share of unknown tokens
_EPISODES = 10  # Minimum number of finished episodes for comparing rewards
_PARTS, _PART_EPISODES = 5, 30  # The returns' first and last fifth are compared if each has this many episodes
_NEAR_TOP = 0.8  # A policy that starts this close to the highest return may stay there
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # Less precise than float32
_KEY_WIDTH = 36  # Columns for a setting such as policy.args.generation.temperature=2
_WEIGHT = 0.02  # Typical magnitude of a language model's weight

SHOWN = ("return_mean", "success_rate", "entropy", "uniform_entropy", "approx_kl", "grad_norm", "equal_groups")
"""The metrics to show if no signs are found."""
Figures = Mapping[str, Any]
"""Means of the metrics and measurements of the first updates, without missing values, and all ``rows``."""


class Finding(NamedTuple):
    """A sign that a run is not learning."""

    symptom: str
    evidence: str
    change: str
    """The first thing to change."""


@torch.no_grad()
def measure(policy: Policy, rollout: Rollout, num_actions: int | None) -> dict[str, float]:
    """Measure a rollout before learning from it; ``num_actions`` is the world's number of actions if constant."""
    sums = rollout.rewards.sum(0)  # (num_envs,)
    is_equal = sums == sums[0] if rollout.sequences else rollout.rewards == 0
    figures = {"equal_rewards": float(is_equal.all())}
    if rollout.groups is not None:
        groups = [sums[rollout.groups == group] for group in rollout.groups.unique()]
        figures["equal_groups"] = fmean(float(group.max() == group.min()) for group in groups)
    if num_actions is not None:
        figures["uniform_entropy"] = math.log(num_actions)
    if not isinstance(policy, LanguageModelPolicy) or isinstance(rollout.observations[0], Turn):
        return figures
    counted = range(len(rollout)) if rollout.mask is None else rollout.mask.flatten().nonzero()[:, 0].tolist()
    chosen = [rollout.observations[i] for i in counted[:: max(1, len(counted) // _OBSERVATIONS)]]
    figures["uniform_entropy"] = fmean(math.log(len(one.actions)) for one in chosen)
    text = "\n".join(line for one in chosen for line in (one.goal, *one.descriptions[-1], *one.actions))
    (tokens,), unknown = policy.lm.text_encoder.encode_all([text]), policy.lm.tokenizer.unk_token_id
    figures["tokens_per_character"] = len(tokens) / max(1, len(text))
    figures["unknown_tokens"] = tokens.count(unknown) / max(1, len(tokens))
    if len({one.actions for one in chosen}) == 1 and (outputs := policy.outputs(chosen)) is not None:
        shares = outputs.log_probs.double().exp()  # (num_chosen, num_actions)
        mean = shares.mean(0)
        figures["mean_entropy"] = torch.special.entr(mean).sum().item()
        figures["information"] = figures["mean_entropy"] - torch.special.entr(shares).sum(1).mean().item()
        figures["largest_share"] = mean.max().item()
    return figures


@dataclass
class DiagnosisLog:
    """Writes measurements of the first updates to a run's ``diagnosis.jsonl``, and shows each finding once."""

    config: Config
    folder: Path
    file: RowFile | None  # None if the run resumes after the first updates
    show: Callable[..., None]
    measures: Mapping[str, float] = field(default_factory=dict)  # Measurements of the next update to log

    def log(self, row: dict[str, Any]) -> None:
        if self.file is not None and row["update"] <= UPDATES:
            self.file.append({"update": row["update"], "step": row["step"], **self.measures})
            if row["update"] == UPDATES and (found := findings(examined(self.folder), self.config)):
                self.show(table_of(found, f"signs that this run cannot learn (groundling diagnose {self.folder})"))
        rows = read_metrics(self.folder) if row["step"] >= self.config.training.steps else []
        if (trend := _trend({"rows": rows}, self.config)) is not None:
            self.show(f"{trend.symptom}: {trend.evidence}; try {trend.change}", highlight=False, soft_wrap=True)


def examined(folder: Path) -> Figures:
    """Return means over a run's first updates, the number of episodes that ended in them, the number of steps (or
    tokens) per update, and all rows of metrics; empty before the first update.
    """
    measures, all_rows = {row["update"]: row for row in read_rows(folder / FILE)}, read_metrics(folder)
    rows = [one | measures.get(one["update"], {}) for one in all_rows[:UPDATES]]
    present = {name: [row[name] for row in rows if row.get(name) is not None] for row in rows for name in row}
    figures = {name: values[-1] if name == "episodes" else fmean(values) for name, values in present.items() if values}
    return figures | {"steps": rows[-1]["step"] / len(rows), "rows": all_rows} if rows else {}


def findings(figures: Figures, config: Config) -> list[Finding]:
    """Return the signs that a run is not learning, starting with the likeliest cause."""
    found = [check(figures, config) for check in _CHECKS]
    return [one for one in found if one is not None]


def table_of(found: Sequence[Finding], title: str) -> Table:
    change = Column("change first", width=_KEY_WIDTH, overflow="fold")
    table = Table("symptom", "evidence", change, title=title, title_justify="left")
    for one in found:
        table.add_row(*one)
    return table


def _rewards(figures: Figures, config: Config) -> Finding | None:
    episodes = figures.get("episodes", 0)
    if figures.get("equal_rewards") != 1 or episodes < _EPISODES:
        return None
    change = "an easier task, a reward for progress, or cloning.episodes=100"
    if hasattr(config.world, "texts_per_prompt"):
        change = "the reward function: print what it returns for a few texts"
    return Finding("all rewards are equal", f"{episodes} episodes, reward {', '.join(config.reward) or 'env'}", change)


def _groups(figures: Figures, config: Config) -> Finding | None:
    share = figures.get("equal_groups", 0)
    key = "texts_per_prompt" if hasattr(config.world, "texts_per_prompt") else "group_size"
    size = getattr(config.world, key, 1)
    if share < _MOST or size == 1 or figures.get("equal_rewards") == 1:
        return None
    return Finding(
        "most groups have no variance, so their advantages are 0",
        f"{share:.0%} of the groups of {size} have equal returns",
        f"larger groups (world.{key}={2 * size}), or a reward that also distinguishes failures",
    )


def _movement(figures: Figures, config: Config) -> Finding | None:
    args = config.algorithm.args
    moved, rate = figures.get("approx_kl"), args.get("learning_rate") or figures.get("learning_rate") or 0.0
    # The policy has not changed yet when the first minibatch is evaluated.
    is_seen = args.get("epochs", 1) > 1 or args.get("minibatch_size", 64) < figures.get("steps", 0) / 2
    if moved is None or not is_seen or _STILL <= moved < _TORN:
        return None
    symptom, factor = ("the policy hardly moves", 10) if moved < _STILL else ("updates replace the policy", 0.1)
    evidence = f"approx_kl {moved:.1g} at learning rate {rate:.1g}"
    return Finding(symptom, evidence, f"algorithm.args.learning_rate={factor * rate:.1g}")


def _entropy(figures: Figures, config: Config) -> Finding | None:
    entropy, success = figures.get("entropy"), figures.get("success_rate", 0)
    if entropy is None or success >= _SUCCESS or figures.get("approx_kl", 0) >= _TORN:
        return None
    uniform = figures.get("uniform_entropy")
    if entropy >= (_LOW_TOKEN_ENTROPY if uniform is None else _LOW_ENTROPY * uniform):
        return None
    evidence = f"entropy {entropy:.3g} " + (
        "per token" if uniform is None else f"is {entropy / uniform:.0%} of uniform"
    )
    evidence += f", success {success:.2f}" if "success_rate" in figures else ""
    return Finding("the policy hardly explores", evidence, _explore(config))


def _explore(config: Config) -> str:
    """Return the setting that increases the entropy of the first actions most."""
    known, args = _known(config), config.policy.args
    if "normalize" in known and args.get("normalize", "sum") == "sum" and args.get("compat") is None:
        return "policy.id=action_writing: the sum over tokens makes long actions unlikely"
    if "temperature" in known:
        return f"policy.args.temperature={2 * args.get('temperature', known['temperature'].default):g}"
    if "generation" in known:
        return f"policy.args.generation.temperature={2 * (args.get('generation') or {}).get('temperature', 1):g}"
    return "algorithm.args.entropy_coefficient: 10 times as much"


def _known(config: Config) -> Mapping[str, Any]:
    """Return the policy's arguments, or none if its module is not imported."""
    return named_parameters(policies.get(config.policy.id)) if config.policy.id in policies else {}


def _script(figures: Figures, config: Config) -> Finding | None:
    length, unknown = figures.get("tokens_per_character", 0), figures.get("unknown_tokens", 0)
    if length < _LONG_TEXT and unknown < _UNKNOWN:
        return None
    evidence = f"{length:.1f} tokens per character, of which {unknown:.0%} are unknown"
    return Finding("the tokenizer lacks tokens for the env's script", evidence, "model.path: a model of this language")


def _prior(figures: Figures, config: Config) -> Finding | None:
    uniform = figures.get("uniform_entropy") or 1.0
    explained, mean = figures.get("information", uniform) / uniform, figures.get("mean_entropy", 0) / uniform
    if explained >= _SAME_EVERYWHERE or mean >= _UNIFORM:
        return None
    change = _explore(config)
    if "calibration" in _known(config) and not config.policy.args.get("calibration"):
        change = "policy.args.calibration=256, which subtracts each action's mean"
    evidence = f"one action averages {figures['largest_share']:.2f}; observations explain {explained:.1%} of choices"
    return Finding("the action hardly depends on the observation", evidence, change)


def _rounding(figures: Figures, config: Config) -> Finding | None:
    rate, dtype = figures.get("learning_rate"), config.model.dtype
    rounding = torch.finfo(_DTYPES.get(dtype, torch.float32)).eps * _WEIGHT / 2
    if rate is None or config.model.lora or rate >= rounding:
        return None
    evidence = f"learning rate {rate:.1g}; {dtype} rounds away changes below {rounding:.1g} in a weight of {_WEIGHT}"
    change = "algorithm.args.learning_rate" if dtype == "float32" else "model.dtype=float32, or model.lora"
    return Finding("weight updates are lost to rounding", evidence, change)


def _gradients(figures: Figures, config: Config) -> Finding | None:
    norm, most = figures.get("grad_norm"), config.algorithm.args.get("max_grad_norm", 0.5)
    if (
        norm is None
        or _VANISHED <= norm <= _CLIPPED * most * max(1.0, figures.get("value_loss", 0.0)) ** 0.5
        or 1 in (figures.get("equal_rewards"), figures.get("equal_groups"))
    ):
        return None
    if norm < _VANISHED:
        return Finding("gradients vanish", f"norm {norm:.1g}", _explore(config))
    evidence = f"norm {norm:.3g}, clipped to {most:g}"
    return Finding("gradients explode", evidence, "the scale of the rewards, such as reward.env.args.scale=0.01")


def _trend(figures: Figures, config: Config) -> Finding | None:
    """Compare the mean returns of the first and last updates; the interval assumes independent episodes."""
    rows, before, ended = figures.get("rows", []), 0, []
    is_text = hasattr(config.world, "texts_per_prompt")
    longest = 0 if is_text else max((row.get("episode_length_max") or 0 for row in rows), default=0)
    for row in rows:
        count, before = row.get("episodes", 0) - before, row.get("episodes", 0)
        # Until the longest episodes have ended, the mean is that of short ones, which succeed more often.
        if count and row.get("return_mean") is not None and row["step"] >= longest * config.world.num_rows:
            ended.append((count, *(row[f"return_{name}"] for name in ("mean", "std", "min", "max"))))
    is_rewarded = is_text or config.reward.get("env", True) is not None  # otherwise, returns may fall
    if not (size := len(ended) // _PARTS) or not is_rewarded:
        return None
    parts = []
    for part in (ended[:size], ended[-size:]):
        counts, means, stds = np.array(part)[:, :3].T
        mean, total = np.average(means, weights=counts), counts.sum()
        parts.append((mean, counts @ (stds**2 + (means - mean) ** 2) / total**2, int(total)))
    (first, first_error, num_first), (last, last_error, num_last) = parts
    change, half = last - first, 1.96 * math.sqrt(first_error + last_error)
    low, high = min(one[3] for one in ended), max(one[4] for one in ended)
    is_near_top = first > low + _NEAR_TOP * (high - low) or low == high > 0
    if min(num_first, num_last) < _PART_EPISODES or change > half or (is_near_top and change >= -half):
        return None
    name, unit = ("reward", "texts") if is_text else ("return", "episodes")
    evidence = f"{first:.3g} in the first {num_first} {unit}, {last:.3g} in the last {num_last}"
    evidence += f", 95% interval of the change {change - half:.2g} to {change + half:.2g}"
    if change < -half:
        return Finding(f"the {name} fell", evidence, "a lower algorithm.args.learning_rate")
    return Finding(f"the {name} did not clearly rise", evidence, "more training.steps, or a higher learning_rate")


_CHECKS = (_rewards, _groups, _movement, _entropy, _script, _prior, _rounding, _gradients, _trend)
