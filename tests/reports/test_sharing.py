"""Shared files contain no data of the author's machine: text is planted in each setting, and every byte searched."""

import base64
import copy
import functools
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from PIL import Image

from groundling.cli.main import main
from groundling.config.compose import compose, from_values, to_yaml
from groundling.config.facts import facts_of, shareable
from groundling.errors import GroundlingError
from groundling.fields import Section
from groundling.reports import plots
from groundling.reports.run_folder import usual_suite
from groundling.training import checkpoint
from groundling.training.build import world_of
from groundling.worlds import kind, worlds
from tests.thorough import THOROUGH, thorough

HOME = "/home/alice/private"
TOKEN = "hf_SecretSecretSecretSecretSecretSecr"
PLANTED = {
    "a path": f"{HOME}/",
    "servers and keys": "at http://gpu7.corp.internal:8443/v1 or gpu7.corp.internal:8000, alice@gpu7.corp.internal: "
    f"{TOKEN} ",
}
PRIVATE = re.compile(rb"alice|/home/|private|gpu7|corp\.internal|" + TOKEN.encode())
MARK = "planted:"
EXPERIMENTS: dict[str, Any] = {
    "text": ("demo",),
    "writing": ("rl4lms/increasing_numbers_ppo", ("world.pool=csv", "~world.args", "world.args={path: p.csv}")),
    "nethack": ("motif/score",),
}
FREE = {
    "text": {"name", "run_dir", "imports", "model.path", "model.tokenizer", "world.dataset"},
    "writing": {"name", "run_dir", "imports", "model.path", "model.tokenizer", "world.args"},
    "nethack": {"name", "run_dir", "imports", "training.trackio"},
}
"""Settings that must be among those that can be planted, so that the test is meaningful."""


def _plants(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Return a value with `MARK` for each setting of a section that may contain a text, by dotted key."""
    for name, field in type(node).model_fields.items():
        under, hint, value = f"{key}{name}", str(field.annotation), getattr(node, name)
        planted = f"{MARK}{under}"
        if isinstance(value, Section):
            yield from _plants(value, f"{under}.")
        elif isinstance(value, dict) and any(isinstance(one, Section) for one in value.values()):
            for part, inside in value.items():
                yield from _plants(inside, f"{under}.{part}.")
        elif isinstance(value, dict) and value:
            yield under, {name: planted if isinstance(one, str) else one for name, one in value.items()}
        elif isinstance(value, dict):
            yield under, {planted: planted, f"{planted}-2": {"c": [planted, {"d": planted}]}}
        elif "list[str]" in hint:
            yield under, [*(value or ()), planted]
        elif re.search(r"\bstr\b", hint):
            yield under, planted


def _planted_with(values: dict[str, Any], plants: Mapping[str, Any], text: str) -> Any:
    """Return nested settings with the planted text."""
    planted = copy.deepcopy(values)
    for key, value in plants.items():
        *sections, last = key.split(".")
        functools.reduce(dict.__getitem__, sections, planted)[last] = value
    return json.loads(json.dumps(planted).replace(MARK, text))


@functools.cache
def _settings(world: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a run's settings, and those in which text can be planted, which excludes settings that are rejected."""
    config = compose(*EXPERIMENTS[world])
    values = yaml.safe_load(to_yaml(config))
    plants = {key: value for key, value in _plants(config) if "ReadByModel" not in {f.name for f in facts_of(key)}}
    del plants["model.revision"]  # requires a hub id as model.path
    while True:
        try:
            world_of(from_values(_planted_with(values, plants, MARK))).spec  # noqa: B018
            return values, plants
        except GroundlingError as error:
            refused = [key for key in plants if re.search(rf"{MARK}{re.escape(key)}(?!\w)", str(error))]
            assert refused, error
            for key in {*refused} - {"imports"} or refused:  # any error about a missing component lists it
                del plants[key]


def _planted_run(world: str, text: str, folder: Path) -> set[str]:
    """Write a run with the text in every setting that accepts it, and in everything derived from settings.

    Returns:
        The keys of these settings.
    """
    values, plants = _settings(world)
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(_planted_with(values, plants, text)), folder / "config.yaml")
    inside = f"{text}inside"
    figures = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in ("success", f"at {inside}")}
    agents = {name: {"episodes": 2, "figures": figures} for name in ("trained", f"agent {inside}")}
    evaluation = {
        "suite": usual_suite(kind(world)),
        "name": f"dataset {inside}",
        "world": {"args": {"x": inside}},
        "overrides": [f"model.path={inside}"],
        "checkpoint": "000001",
        "agents": agents,
        "left_out": {"random": f"there is no folder {inside}: put it there"},
    }
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / f"{evaluation['suite']}.json").write_text(json.dumps(evaluation))
    rows = [{"update": n, "step": 16 * n, "seconds": n, "return_mean": n} for n in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    newest = folder / "checkpoints" / "000001"
    newest.mkdir(parents=True)
    checkpoint.write_json(newest / "run.json", {"counters": {"update": 1, "step": 16}})
    checkpoint.write_json(newest / "config.json", {"model_type": "t5", "_name_or_path": inside, "x": [inside]})
    checkpoint.write_json(newest / "adapter_config.json", {"base_model_name_or_path": f"{HOME}/base"})
    checkpoint.write_json(newest / "tokenizer_config.json", {"name_or_path": inside, "vocab_file": inside})
    checkpoint.seal(newest)
    return set(plants)


def _assert_nothing_private(folder: Path) -> None:
    """Search names and contents, including images inside pages and the texts of PNGs."""
    for path in folder.rglob("*"):
        content = str(path.relative_to(folder)).encode() + b"\n"
        if path.is_file():
            content += path.read_bytes()
            for picture in re.findall(rb"base64,([A-Za-z0-9+/=]+)", content):
                content += base64.b64decode(picture)
        if path.suffix == ".png":
            content += repr(Image.open(path).info).encode()
        found = PRIVATE.search(content)
        assert found is None, (path, content[max(found.start() - 80, 0) : found.end() + 40])


@pytest.mark.parametrize(
    ("world", "text"),
    [
        ("text", "a path"),
        *thorough(("writing", "servers and keys")),
        pytest.param(
            *("nethack", "a path"), marks=[THOROUGH, pytest.mark.skipif("nethack" not in worlds, reason="no nle")]
        ),
    ],
)
def test_no_setting_reveals_the_machine_in_a_report_or_a_published_folder(
    world: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "alice" / "run", tmp_path / "shared"
    taken = _planted_run(world, PLANTED[text], run)
    assert taken >= FREE[world]
    words = [["publish", str(run), "--output", str(out / "published")]]
    words += [["report", str(run), "--output", str(out / "report.html"), "--export", str(out / "returns.json")]]
    for line in words:
        assert main(line) == 0, capsys.readouterr().err
    assert {"config.yaml", "README.md", "config.json"} <= {p.name for p in (out / "published").iterdir()}
    head = yaml.safe_load((out / "published" / "README.md").read_text().split("\n---\n")[0])
    assert head["model-index"]
    _assert_nothing_private(out)


def test_no_name_in_a_picture_reveals_the_machine(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0} for step in range(4)]
    out = tmp_path / "shared"
    out.mkdir()
    name = f"run of {HOME}/demo at http://gpu7.corp.internal"
    plots.save(plots.draw_learning_curve({name: [rows]}, "loss", name, {name: 0.5}), out / "curve")
    _assert_nothing_private(out)
    assert "run of demo" in (out / "curve.svg").read_text()


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("gpu7.corp.internal:8443", ""),
        ("on 10.0.0.7 with alice@gpu7.corp.internal:/data/x", "on  with "),
        (f"key={TOKEN}", "key="),
        ("`/home/alice/x`", "`x`"),
        ("http://[fe80::1]:8000/x (http://gpu7/v1), x", " (), x"),
        ("sk-proj-abcdefghijklmnopqrst0123 ghp_abcdefghijklmnopqrstuvwxyzABCDEFGHIJ", " "),
        ("→/home/alice/x «/home/alice/y»：/home/alice/z", "→x «y»：z"),
        ("/home/alice/x, then /home/alice/y", "x, then y"),
        ("数据在/home/alice/z。อยู่ที่/home/alice/y", "数据在z。อยู่ที่y"),
        (r"C:\Users\Alice Smith\x", "x"),
        (r"from \\nas01\alice\x and C:\Users\alice\y", "from x and y"),
    ],
)
def test_addresses_and_keys_are_removed_from_texts(text: str, shared: str) -> None:
    assert shareable(text) == shared == shareable(shared)


@pytest.mark.parametrize(
    "text",
    [
        "pass@5 on cuda:0, version 1.2.3, task-1",
        "version 1.2.3.4, section 3.2.1.4, at 12:30:45, 5:4",
        "pass@5: 0.3, mAP@0.5: 0.4, pkg@1.2.3",
        "/no_think Answer yes or/and no.",
        "File trainer.py:88, in step; config.yaml:12: error",
        "x[1:20] = a/b + c//d  // see /*e*/",
        "~5/6 of sk-learn-model-2024-xx and hf_hub_downloads1",
        "mylib.envs:Door-v0 </think> left/right",
        "日本/東京/大阪 क्/ख्/ग",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    assert shareable(text) == text and shareable({text: [text]}) == {text: [text]}


def test_time_is_linear_in_the_length_of_a_text() -> None:
    for part in ("/", "(/a", "a.b@c.", "sk-a-", "eyJ-", "a-", "://", ": ", "/a, "):
        begun = time.process_time()
        shareable(part * (50_000 // len(part)))
        assert time.process_time() - begun < 1, part  # quadratic ones would take 10 or more


def test_credentials_are_removed_by_their_key() -> None:
    secrets = ("token", "hf_token", "github_token", "api_key", "AWS_SECRET_ACCESS_KEY", "private_key", "password")
    settings = dict.fromkeys((*secrets, "Authorization", "db_credentials"), "abc") | {"eos_token": "</s>"}
    assert shareable({"args": settings, f"{HOME}/x": 1}) == {"args": {"eos_token": "</s>"}, "x": 1}
