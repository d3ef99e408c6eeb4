"""Findings of fuzzing, each with the smallest input that reproduces it."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from groundling.envs.text_generation.pools import Sample
from groundling.errors import GroundlingError
from groundling.judges.asking import judge
from tests.convert import originals
from tests.fuzz.__main__ import targets
from tests.fuzz.dataset_targets import _LABELS, _MESSAGES, _PAIR, _File, _invalid, _Pairs, _plain
from tests.fuzz.settings_targets import _filled

TARGETS = {target.name: target for target in targets()}
_DESCRIPTION = b'{"world": "text"}'


def _glam(name: str, key: str, value: Any) -> bytes:
    values = _filled(originals.GLAM[name])
    values["rl_script_args"][key] = value
    return json.dumps(values).encode()


def _rl4lms() -> bytes:
    values = originals.rl4lms(next(name for name in originals.RL4LMS if name.endswith("ppo")))
    values["alg"].setdefault("args", {})["vf_coef"] = "abc"
    return json.dumps(values).encode()


def _study(common: str) -> tuple[bytes, list[str]]:
    return (f"name: s\ncommon: {common}\narms: {{a: {{experiment: demo-easy}}}}\n".encode(), [])


def _figure(high: Any) -> bytes:
    figure = {"value": 0.5, "low": None, "high": high}
    return json.dumps({"agents": {"a": {"figures": {"success": figure}}}}).encode()


def _rows(**row: Any) -> _File:
    rows = [{"prompt": f"p{number}", "reference": "b", "id": number, "more": 1, **row} for number in range(5)]
    return _File("jsonl", "".join(json.dumps(one) + "\n" for one in rows).encode())


def _parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def _pairs(content: bytes) -> _Pairs:
    return _Pairs(
        {"data/pairs.parquet": content, "recording.json": _DESCRIPTION, "preference/a.parquet": _plain(_LABELS)}
    )


def _labels(content: bytes) -> _Pairs:
    return _Pairs(_pairs(_plain([_PAIR] * 2)).files | {"preference/a.parquet": content})


def _zipped() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(2))
    return file.getvalue()


_NOT_UTF8 = _parquet(pa.table({**{name: [value] for name, value in _PAIR.items()}, "first_context": _invalid(1)}))
_TWO_SHAPES = _parquet(pa.Table.from_pylist([_MESSAGES | {"second_rewards": [0.5, 1.0, 1.0]}] * 2))
_SWEEPS = ("interval(0,1)", "shuffle(range(1,1000000000))", "range(1,2,1e-300)")
_HUB_ROWS = ({"dialog": True}, {"dialog": ["a"] * 7, "emotion": 1, "act": [1] * 7}, {"dialog": [None] * 7})
_ROUNDS = (b'[1, ["x"], "", {}]', b'["go", [], "", {}]', b'["go", ["x"], "", {"return": "a"}]', b"[{}]")
_ARRAYS = (_zipped(), _zipped()[:20], b"\x93NUMPY\x01\x00\x06\x00{'a'(\n", b"")
_CONFIG = "name: a\nworld: {id: text, env: BabyAI-GoToObj-v0}\npolicy: {id: random}\nalgorithm: {id: ppo}\n"
REFUSED: list[tuple[str, Any, str]] = [
    *(("read_yaml", text, "remove the tag") for text in (b"a: !!bool ull", b"a: !!timestamp x", b"a: !!int ''")),
    *(("overrides", f"seed={sweep}", "write seed=|runs") for sweep in _SWEEPS),
    ("overrides", "seed=range(1,20001)", "10,000 runs"),
    *(
        ("compose", ("glam/symbolic", [f"{key}=1{'0' * 400}"]), key)
        for key in ("reward.env.coefficient", "training.steps")
    ),
    ("glam_config", _glam("glam-local", "value_loss_coef", 10**400), r"value_loss_coef must be less than 2\*\*63"),
    ("glam_config", _glam("lamorel-ppo", "gradient_batch_size", "x"), "must be"),
    ("rl4lms_config", _rl4lms(), r"vf_coef must be a number, got 'abc'"),
    *(("studies", _study(common), "cannot read the study") for common in ("[{1: 2}]", "['${..arms}']", "[[a]]")),
    ("evaluations", _figure("a.b"), r"a\.b"),
    ("run.json", b'{"counters": {"update": 2, "step": 2.5}}', "step=2.5 is not a count"),
    ("compose", ("glam/symbolic", ["policy.id=[a]"]), "policy.id must be text"),
    *(("recordings", row, "not a recorded round") for row in _ROUNDS),
    ("pools of files", _rows(reference="\ud800"), "half a surrogate pair"),
    ("pools of files", _rows(reference=5), "must be strings, got 5"),
    *(("pools of the hub", ("daily_dialog", [row]), "does not have the format") for row in _HUB_ROWS),
    *(("pairs in Parquet", _pairs(content), "") for content in (_NOT_UTF8, _TWO_SHAPES, b"PAR1" * 9)),
    *(("pools of files", _File("parquet", content), "") for content in (_NOT_UTF8, b"PAR1" * 9)),
    ("pairs in Parquet", _labels(_plain([{"preference": 256}] * 2)), ""),
    *(("pairs in arrays", _Pairs({"data/message.npy": content}), "not a readable array") for content in _ARRAYS),
    ("from_file", b"world: [1, 2]\n", "world"),
    ("from_file", f"{_CONFIG}evaluation: text\n".encode(), "evaluation"),
]
_FENCED = (
    *('{"ver\\u0064ict": "1"}', '{"verdict_": 1}', "Verdict_: 1", "**Verdict_**: tie"),
    *("Verdict:：", "Verdict: ： 2", "Verdict=＝1", "<｜ ＜", "---－－－"),
)
_ENTRY = {"bytes": 8, "sha256": hashlib.sha256(b'{"a": 1}').hexdigest()}
READ: list[tuple[str, Any]] = [
    *(("fence", (caption, "")) for caption in _FENCED),
    *(
        ("manifest", json.dumps({"run.json": _ENTRY, name: _ENTRY}).encode())
        for name in ("/dev/zero", "../made.json", "sub")
    ),
]


@pytest.mark.parametrize(("name", "made", "message"), REFUSED)
def test_a_found_input_is_refused(name: str, made: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(GroundlingError, match=message):
        TARGETS[name].check(made, tmp_path)


@pytest.mark.parametrize(("name", "made"), READ)
def test_a_found_input_keeps_the_property(name: str, made: Any, tmp_path: Path) -> None:
    TARGETS[name].check(made, tmp_path)


def test_lookalikes_are_not_verdicts() -> None:
    nested = ('{"verdict": "1", "a": {"verdict": "2"}}', '{"a": {"verdict": "1"}, "ver\\u0064ict": "2"}')
    for reply in (*nested, '{"verdict": "T\u0131E"}'):
        assert judge.parse(reply, "json") is None
    for word in ("t\u0130e", "T\u0131E"):  # letters that match only if case is ignored
        assert judge.parse(f"Verdict: {word}", "line") is None and judge.parse(f"({word})", "motif") is None


@pytest.mark.parametrize("prompt, references", [("go \ud800", ()), ("go", "on it"), ("go", None), ("go", {"on it"})])
def test_a_sample_has_texts(prompt: str, references: Any) -> None:
    with pytest.raises(GroundlingError, match=r"half a surrogate pair|references must be a tuple of strings"):
        Sample("a", prompt, references)
