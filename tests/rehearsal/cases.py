"""All paths by name, their comparison with the CPU, and their problems."""

import collections
import contextlib
import functools
import importlib
import itertools
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.rehearsal import model_paths, paths
from tests.rehearsal.alike import computed_alike
from tests.rehearsal.events import Event, note, recorded
from tests.rehearsal.paths import Outcome, Played

REHEARSAL = "rehearsal"
"""The name of the rehearsed device."""
_EXACT, _ROUNDED, _HALF = 1e-6, 2e-3, 0.1
"""Tolerances of figures x between CPU and device, relative to 1 + |x|: for language models in rehearsal, most of which
are bitwise equal; for networks with other kernels on accelerators, and on a GPU; for bfloat16 on a GPU."""
_NETWORKS = ("drrn", "symbolic", "nethack", "NetHack", "motif", "characters", "bart", "mamba")
UNITS = {
    "collection": "step or token",
    "learning": "gradient step",
    "decoding": "token",
    "distillation": "gradient step",
    "evaluation": "agent",
    "run with checkpoints": "run of one update",
}
"""The unit in which each phase is counted."""
TWICE = ", twice as long"
"""Suffix of a path that writes 48 tokens instead of 24."""
_AT_MOST = {"collection": 40, "learning": 160}
"""Maximum number of copies and waits per unit, to detect a copy per row; not for TRPO, whose steps are large."""

FEW = {
    "text: action_scoring, ppo, env reward",
    "writing: token, rloo, metric",
    "conversations, groups of episodes",
    "decoding, NLPO's mask",
    f"decoding, NLPO's mask{TWICE}",
    "a language model as judge, choice",
}
"""The paths that `make test-thorough` runs."""
_IN_BFLOAT16 = (
    "LoRA and a KL penalty, text",
    "checkpointed gradients and a reference, writing",
    "conversations, action_scoring",
)
"""Variants that are also run in bfloat16."""


@dataclass(frozen=True)
class Rehearsal:
    """The result of a path."""

    name: str
    difference: float
    """The largest difference between CPU and device, relative to 1 + |x|."""
    units: dict[str, int]
    events: list[Event]
    problems: list[str]


def everything(whole: bool) -> Iterator[tuple[str, Played]]:
    """Yield all paths, or a few of them."""
    return ((name, play) for name, play in _everything() if whole or name in FEW)


def _everything() -> Iterator[tuple[str, Played]]:
    for one in paths.combinations():
        name = f"{one.world}: {one.policy}, {one.algorithm}, {one.reward}"
        yield name, functools.partial(paths.trained, paths.settings(one))
    for name, config in paths.variants():
        yield name, functools.partial(paths.trained, config)
    for name, config in paths.whole_runs():
        yield name, functools.partial(paths.whole_run, config)
    for starter in ("starter", "starter-causal"):
        yield f"scores and texts, {starter}", functools.partial(model_paths.scored, starter=starter)
    for family in ("gpt2", "bart", "bloom", "mamba", "gemma3_text"):
        yield f"scores of {family}", functools.partial(model_paths.of_family, family=family)
    yield "decoding", model_paths.decoded
    yield "decoding, top-p", functools.partial(model_paths.decoded, top_p=0.9)
    yield "decoding, NLPO's mask", functools.partial(model_paths.decoded, mask="learned_top_p")
    yield (
        f"decoding, NLPO's mask{TWICE}",
        functools.partial(model_paths.decoded, mask="learned_top_p", num_tokens=48),
    )
    for starter in ("starter", "starter-causal"):
        yield f"texts that end, {starter}", functools.partial(model_paths.ended, starter=starter)
    for starter in ("starter", "starter-causal"):
        yield f"over two devices, {starter}", functools.partial(model_paths.spread, starter=starter)
    for kind in ("motif", "characters", "language_model", "table"):
        yield f"distilling a reward model, {kind}", functools.partial(model_paths.distilled, kind=kind)
    for answer in ("choice", "line"):
        yield f"a language model as judge, {answer}", functools.partial(model_paths.judged, answer=answer)
    yield "a metric with a model", model_paths.measured
    for name, config in paths.variants():
        if name in _IN_BFLOAT16:
            yield f"bfloat16, {name}", model_paths.in_bfloat16(functools.partial(paths.trained, config))
    yield "bfloat16, decoding", model_paths.in_bfloat16(model_paths.decoded)


def by_number(number: int, whole: bool, device: str) -> Rehearsal:
    """Run one path of `everything`, for processes that share the paths."""
    name, play = next(itertools.islice(everything(whole), number, None))
    return rehearse(name, play, device)


def rehearse(name: str, play: Played, device: str = REHEARSAL) -> Rehearsal:
    """Run a path on the CPU and on the device, and compare the results."""
    if device == REHEARSAL:
        importlib.import_module("tests.rehearsal.device")  # creates the device for the rest of the process
    with warnings.catch_warnings(action="ignore"), computed_alike():
        expected = play("cpu", _new_folder())
    paths.UNITS.clear()
    with recorded() as events, warnings.catch_warnings(action="ignore"), _comparable(device):
        try:
            difference = _difference(expected, play(device, _new_folder()), device)
        except Exception as error:
            problems = [*_refusals(events), f"{type(error).__name__}: {error}"]
            return Rehearsal(name, float("nan"), dict(paths.UNITS), events, problems)
    problems = [*_refusals(events), *_too_many(name, events, paths.UNITS)]
    if not difference <= _allowed(name, device):
        problems.append(f"CPU and device differ by {difference:.1e}")
    return Rehearsal(name, difference, dict(paths.UNITS), events, problems)


def _allowed(name: str, device: str) -> float:
    if device != REHEARSAL and name.startswith("bfloat16"):
        return _HALF
    return _ROUNDED if device != REHEARSAL or any(word in name for word in _NETWORKS) else _EXACT


@contextlib.contextmanager
def _comparable(device: str) -> Iterator[None]:
    """Disable TF32 on a GPU, and record what the host waits for."""
    if device == REHEARSAL:
        yield
        return
    warnings.simplefilter("always")
    warnings.showwarning = _note_waiting  # restored by catch_warnings
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), model_paths.saying_of_bfloat16(device, False):
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _note_waiting(message: Warning | str, *_: object) -> None:
    if "called a synchronizing CUDA operation" in str(message):
        note("wait", "synchronizing")


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=paths.materials.folder()))


def _refusals(events: list[Event]) -> list[str]:
    """Return what the device refused, even if the caller ignored the error."""
    refused = collections.Counter((e.operator, e.place, e.line) for e in events if e.kind == "refused")
    return [f"{operator} refused in {place}, line {line}" for operator, place, line in refused]


def for_a_further_token(done: Sequence[Rehearsal]) -> float:
    """Return the number of copies and waits per additional token of a text with NLPO's mask."""
    (longer,) = (one for one in done if one.name.endswith(TWICE))
    (usual,) = (one for one in done if one.name == longer.name.removesuffix(TWICE))
    more, tokens = len(longer.events) - len(usual.events), "decoding"
    return more / (longer.units[tokens] - usual.units[tokens])


def _too_many(name: str, events: list[Event], units: collections.Counter[str]) -> list[str]:
    """Return problems with the traffic per token or per row of a step."""
    problems = []
    places = collections.Counter((e.kind, e.place) for e in events if e.phase == "decoding")
    for (kind, place), count in places.items():
        if count > units["decoding"] / 2:
            problems.append(f"{kind}, {count} times in {units['decoding']} tokens: {place}")
    for phase, most in _AT_MOST.items():
        count = sum(e.phase == phase for e in events)
        if units[phase] and count > most * units[phase] and "trpo" not in name:
            problems.append(f"{count} copies and waits in {units[phase]} of {UNITS[phase]}")
    return problems


def _difference(expected: Outcome, seen: Outcome, device: str) -> float:
    assert expected.keys() == seen.keys(), f"only one has {sorted(expected.keys() ^ seen.keys())}"
    comparable = [name for name in expected if device == REHEARSAL or not name.startswith(paths.DRAWN)]
    return max(_distance(_plain(expected[name]), _plain(seen[name])) for name in comparable)


def _plain(value: Tensor | float) -> Tensor:
    return torch.as_tensor(getattr(value, "held", value)).detach().cpu().double()


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not a.numel():
        return float(a.shape != b.shape)
    both = torch.nan_to_num(a, nan=0.5), torch.nan_to_num(b, nan=0.5)
    return ((both[0] - both[1]).abs() / (1 + both[0].abs())).max().item()
