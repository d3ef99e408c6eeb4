"""Measure forgetting: perplexity on ordinary text, and divergence from the initial model on text and observations."""

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import functional as F

from groundling.errors import ConfigError, RunError
from groundling.evaluation.target import Target
from groundling.io.documents import read_object
from groundling.io.files import write_atomically
from groundling.lm import LanguageModel
from groundling.policies.policy import Policy
from groundling.worlds.protocols import RandomPlay

FILE = "forgetting.json"  # in a run's folder
_PASSAGES, _TOKENS = 32, 128  # number of evenly spaced passages of ordinary text, and tokens per passage
_STATES = 128  # number of observations from random play


@dataclass(frozen=True)
class Forgetting:
    """Metrics of one agent; divergences are KL(initial model ‖ agent) in nats.

    At the same success rate, on-policy learning changes a model less than cloning (RL's Razor, arXiv 2509.04259).
    """

    perplexity: float  # on ordinary text
    text_kl: float  # per token of ordinary text
    action_kl: float | None  # per observation from random play; None unless actions depend only on the observation


_AGENTS = TypeAdapter(dict[str, Forgetting])


def measure_forgetting(target: Target, on_agent: Callable[[str], None] = lambda agent: None) -> dict[str, Forgetting]:
    """Compare a run's agent, and the clone it started from, with the initial model; write ``forgetting.json``."""
    if target.checkpoint is None:
        raise ConfigError(f"{target.agent} has not been trained: pass a run's folder")
    agents = ["zero-shot", *(["clone"] if target.config.cloning.episodes else []), target.agent]
    start = _Measured(target, "zero-shot")
    passages = _ordinary_text(start.lm)
    figures = {}
    for agent in agents:
        on_agent(agent)
        figures[agent] = _compare(start, start if agent == "zero-shot" else _Measured(target, agent), passages)
    content = {
        **target.checkpoint_identity(),
        "text": f"the language reference of Python {platform.python_version()}",
        "tokens": _PASSAGES * (_TOKENS - 1),
        "agents": {agent: asdict(one) for agent, one in figures.items()},
    }
    write_atomically(target.run_dir / FILE, json.dumps(content, indent=1) + "\n")
    return figures


def read_forgetting(run_dir: Path) -> dict[str, Any] | None:
    """Return the content of a run's ``forgetting.json``, or None if it is missing."""
    path = run_dir / FILE
    if not path.exists():
        return None
    try:
        content = read_object(path)
        return content | {"agents": _AGENTS.validate_python(content.get("agents"))}
    except ValueError as error:
        raise RunError(f"{path} cannot be read ({error!r:.100}): run `groundling forgetting` again") from error


class _Measured:
    """A policy with its language model, and its action log-probabilities for observations from random play."""

    def __init__(self, target: Target, agent: str) -> None:
        policy: Policy | None = target.policy(agent)
        lm = getattr(policy, "lm", None)
        if policy is None or not isinstance(lm, LanguageModel) or lm.model.config.is_encoder_decoder:
            raise ConfigError(
                f"forgetting is measured only for causal language models, and policy {target.config.policy.id!r} of "
                f"{target.run_dir} has none"
            )
        self.lm = lm.eval()
        self.actions: Tensor | None = None  # (num_states, num_actions)
        if isinstance(world := target.world, RandomPlay):
            with torch.no_grad():
                outputs = policy.outputs(world.random_play(_STATES))
            self.actions = None if outputs is None else outputs.log_probs.cpu()

    @torch.no_grad()
    def log_probs(self, passage: Sequence[int]) -> Tensor:
        """Return the next-token log-probabilities within a passage, float32 ``(num_tokens - 1, vocabulary)``."""
        tokens = torch.tensor([passage], device=self.lm.device)
        return self.lm.model(input_ids=tokens).logits[0, :-1].float().log_softmax(-1)


def _compare(start: _Measured, agent: _Measured, passages: Sequence[Sequence[int]]) -> Forgetting:
    losses, divergences = [], []
    for passage in passages:
        before, now = start.log_probs(passage), agent.log_probs(passage)
        losses.append(F.nll_loss(now, torch.tensor(passage[1:], device=now.device)))
        divergences.append(_kl(before, now))
    action_kl = None
    if start.actions is not None and agent.actions is not None:
        action_kl = _kl(start.actions, agent.actions).item()
    perplexity = torch.stack(losses).mean().exp().item()
    return Forgetting(perplexity, torch.stack(divergences).mean().item(), action_kl)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return the mean KL(p ‖ q) of log-probabilities ``(n, outcomes)``; outcomes with p = 0 contribute 0."""
    return torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1).mean()


def _ordinary_text(lm: LanguageModel) -> list[list[int]]:
    """Return passages of Python's language reference, which every Python installation includes."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = lm.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    begins = torch.linspace(0, len(ids) - _TOKENS, _PASSAGES).long().tolist()
    return [ids[begin : begin + _TOKENS] for begin in begins]
