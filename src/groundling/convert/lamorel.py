"""Lamorel's PPO examples: on actions, and on the tokens of texts."""

import math
from typing import Any

from groundling.convert.entries import Entries
from groundling.convert.glam_entries import LLM, MEMORY, PROCESSES, RL, STRINGS
from groundling.errors import ConfigError
from groundling.worlds.writing.config import WritingConfig

Values = dict[str, Any]


def ppo(entries: Entries) -> Values:
    """Values of Lamorel's PPO examples, whose epoch is an update."""
    num_envs = entries.count(f"{RL}.number_envs", 1, least=0)
    per_env = max(1, entries.count(f"{RL}.steps_per_epoch", 256, least=0) // max(1, num_envs))
    entries.notes.append(
        "computed differently from Lamorel's example: advantages are normalised over all envs, values learn "
        "λ-returns, and the prompt is GLAM's with one observation"
    )
    return _common(entries) | {
        "world.num_envs": num_envs,
        "world.history": 1,
        "world.num_steps": per_env,
        "training.steps": entries.count(f"{RL}.epochs", 100, least=0) * per_env * num_envs,
    }


def writer(entries: Entries) -> Values:
    """Values of Lamorel's PPO on tokens, whose step is a token: it learns to write the text that its prompt names."""
    texts = entries.get(STRINGS)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise ConfigError(f"{STRINGS} must be a list of texts, as in [turn left], got {texts!r:.80}")
    longest = entries.count(f"{RL}.max_ep_len", WritingConfig.defaults()["num_tokens"], least=0)
    if longest < 1:
        raise ConfigError(f"{RL}.max_ep_len={longest} leaves no token to write: give at least 1")
    tokens = entries.count(f"{RL}.steps_per_epoch", 256, least=0)
    values = {
        "world.id": "writing",
        "world.pool": "listed",
        "world.args.samples": [{"text": text} for text in texts],
        "world.args.prompt_column": "text",
        "world.args.reference_column": "text",
        "world.args.prompt_prefix": "Say ",
        "world.args.prompt_suffix": "\nYour turn:",
        "world.num_texts": math.ceil(tokens / longest),
        "world.num_tokens": longest,
        "reward.says_reference": {},
        "policy.id": "token",
        # One head of two hidden layers on the policy's own states.
        "policy.args.value": "shared",
        "policy.args.value_hidden_sizes": [1024, 1024],
        "policy.args.value_bias": True,
        "training.steps": entries.count(f"{RL}.epochs", 100, least=0) * tokens,
        "evaluation.episodes": len(texts),
        "evaluation.baselines": ["zero-shot"],
        "evaluation.metrics": [{"id": "says_reference", "args": {}}],
    } | _common(entries)
    if penalty := entries.real(f"{RL}.kl_coef", 0):
        values["algorithm.args.kl_coefficient"] = penalty
        entries.notes.append(f"{RL}.kl_coef={penalty}: the penalty is part of the rewards here, not of the loss")
    if entries.get(f"{RL}.skip_ratio_spikes"):
        entries.notes.append(
            f"{RL}.skip_ratio_spikes: no effect here (algorithm.args.target_kl=0.1, for example, stops learning "
            "from a rollout once the policy has moved far from it)"
        )
    entries.notes.append(
        "computed differently from Lamorel's example: advantages are normalised over all texts, values learn "
        "λ-returns, blanks at a text's ends do not count, a text that contains its string continues to its end "
        "token or to world.num_tokens (which changes no reward), and an update has whole texts"
    )
    entries.remove([f"{RL}.{name}" for name in ("max_ep_len", "kl_coef", "skip_ratio_spikes")])
    return values


def _common(entries: Entries) -> Values:
    entries.note_unused(f"{LLM}.minibatch_size", MEMORY)
    values: Values = {
        "algorithm.args.normalize_advantages": True,
        "algorithm.args.adam_epsilon": 1e-8,
        "model.add_special_tokens": False,
    }
    entries.notes.append(
        "prompts have no special tokens (T5's </s>, Llama's <s>), as in Lamorel since November 2023; as in older "
        "versions: model.add_special_tokens=true"
    )
    if entries.get(f"{RL}.minibatch_size") is not None:  # for each of its model processes
        processes = entries.count(PROCESSES, 1, least=0)
        size = entries.count(f"{RL}.minibatch_size", least=0)
        values["algorithm.args.minibatch_size"] = size * processes
    return values
