"""Untrusted files cannot read the environment: resolvers, Hydra's own keys and code in YAML are disabled."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from groundling.config.compose import changed, compose, from_file, recorded
from groundling.errors import ConfigError
from groundling.studies.definition import read_study
from tests.config.conftest import SECRET, TRUST, demo, demo_values, refusal

RESOLVERS = [
    "${oc.env:GROUNDLING_SECRET}",
    "${oc.env:GROUNDLING_SECRET,none}",
    "a ${ oc.env : GROUNDLING_SECRET } b",
    "${oc.decode:${oc.env:GROUNDLING_SECRET}}",
    "${oc.create:{a:1}}",
    "${oc.dict.values:world}",
    "${oc.deprecated:name}",
    "${oc.select:name}",
    "${hydra:runtime.cwd}",
    "${oc.${policy.id}:GROUNDLING_SECRET}",
    "${${device}}",
    r"\${oc.env:GROUNDLING_SECRET}",
    "${.name}${oc.env:GROUNDLING_SECRET}",
]


@pytest.mark.parametrize("text", RESOLVERS)
def test_no_file_and_no_override_has_a_resolver(tmp_path: Path, text: str, asked: list[str]) -> None:
    values = demo_values()
    for key, value in (
        ("device", text),
        ("policy", {"id": text}),
        ("world", values["world"] | {"args": {"a": [{"b": text}]}}),
    ):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | {key: value}))
        for read in (from_file, recorded):
            with pytest.raises(ConfigError, match="resolvers") as error:
                read(tmp_path / "config.yaml")
            assert SECRET not in str(error.value)
    with pytest.raises(ConfigError, match="resolvers"):
        compose("demo-easy", [f"device='{text}'"])
    with pytest.raises(ConfigError, match="resolvers"):
        changed(demo(), [{"policy.args": {"replacements": {"a": text}}}])
    assert "GROUNDLING_SECRET" not in asked


def test_a_resolver_that_is_put_together_is_none(tmp_path: Path, asked: list[str]) -> None:
    values = demo_values()
    pieces = {"name": "$", "run_dir": "{oc.env:GROUNDLING_SECRET}", "device": "${name}${run_dir}"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | pieces))
    for read in (from_file, recorded):
        with pytest.raises(ConfigError, match="resolvers"):
            read(tmp_path / "config.yaml")
    assert "GROUNDLING_SECRET" not in asked


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("name: ${oc.env:GROUNDLING_SECRET}", "resolvers"),
        ("defaults: ['/own/${oc.env:GROUNDLING_SECRET}']", "resolvers"),
        ("defaults: [/own/more]", "more.yaml: name='${oc.env:GROUNDLING_SECRET}' is not allowed"),
        ("hydra: {job: {env_copy: [GROUNDLING_SECRET]}}\nname: ${hydra.job.env_set.GROUNDLING_SECRET}", "name"),
        ("defaults: [{/own@_global_.hydra.job: copying}]\nname: ${hydra.job.env_set.GROUNDLING_SECRET}", "name"),
        ("model: {trust_remote_code: true}", f"the experiment own sets {TRUST[:-5]}"),
        (
            "reward: {reward_model: {args: {online: {args: {base_url: 'http://h/v1'}}}}}",
            "command: reward.reward_model.args.online.args.base_url=http://h/v1",
        ),
    ],
)
def test_an_experiment_of_another_is_settings_too(
    tmp_path: Path, content: str, why: str, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "more.yaml").write_text("# @package _global_\nname: ${oc.env:GROUNDLING_SECRET}\n")
    (tmp_path / "own" / "copying.yaml").write_text("env_copy: [GROUNDLING_SECRET]\n")
    text = "# @package _global_\nname: own\nworld: {id: text, env: BabyAI-GoToObj-v0}\n"
    text = text.replace("name: own\n", "") if "name:" in content else text
    (tmp_path / "experiment" / "own.yaml").write_text(f"{text}{content}\n")
    words = ["--config-dir", str(tmp_path), f"run_dir={tmp_path / 'new'}", "--dry-run"]
    assert why in refusal(capsys, ["train", "own", *words])
    assert "GROUNDLING_SECRET" not in asked
    if "trust" in content:
        assert compose("own", [TRUST], tmp_path).model.trust_remote_code


@pytest.mark.parametrize("text", ["${oc.env:GROUNDLING_SECRET}", "${other.secret}", "${hydra.run.dir}"])
def test_files_of_other_systems_read_no_environment(
    tmp_path: Path, text: str, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    hidden: dict[str, Any] = {"hydra": {"run": {"dir": RESOLVERS[0]}}}
    if "other" in text:
        hidden["other"] = {"secret": RESOLVERS[0]}
    glam = {"rl_script_args": {"name_environment": "BabyAI-GoToObj-v0", "name_experiment": text}}
    (tmp_path / "glam.yaml").write_text(yaml.safe_dump(glam | hidden))
    refusal(capsys, ["convert", str(tmp_path / "glam.yaml")])
    rl4lms = {"alg": {"id": "ppo", "model_name": text}, "datapool": {"id": "imdb"}}
    (tmp_path / "rl4lms.yaml").write_text(yaml.safe_dump(rl4lms | hidden))
    refusal(capsys, ["convert", str(tmp_path / "rl4lms.yaml")])
    assert "GROUNDLING_SECRET" not in asked


def test_a_study_of_another_is_settings_too(tmp_path: Path, asked: list[str]) -> None:
    path = tmp_path / "study.yaml"
    arms = {"a": {"experiment": "demo-easy", "overrides": [TRUST]}, "b": {"experiment": "demo-easy"}}
    path.write_text(yaml.safe_dump({"name": "s", "arms": arms}))
    with pytest.raises(ConfigError, match=f"add to the command: {TRUST}$"):
        read_study(str(path))
    with pytest.raises(ConfigError, match="add to the command"):
        read_study(str(path), [f"arms.b.{TRUST}"])
    for words in ([TRUST], [f"arms.a.{TRUST}"]):
        assert TRUST in read_study(str(path), words)[0].arms["a"].overrides
    path.write_text(yaml.safe_dump({"name": "s", "title": RESOLVERS[0], "arms": {"a": {"experiment": "demo-easy"}}}))
    with pytest.raises(ConfigError, match="resolvers"):
        read_study(str(path))
    assert "GROUNDLING_SECRET" not in asked


def test_overrides_that_lie_in_a_run_change_nothing_dangerous() -> None:
    """A report recreates envs from the samples, which are files."""
    config = demo()
    with pytest.raises(ConfigError, match="trust_remote_code"):
        changed(config, [TRUST])
    assert changed(config, [TRUST, "seed=3"], "showing") == changed(config, ["seed=3"])
    trusted = compose("demo-easy", [TRUST])
    assert changed(trusted, [TRUST]) == trusted


def test_judges_and_distillation_have_no_resolvers_either(
    tmp_path: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from groundling.cli.annotate import make_judge

    with pytest.raises(ConfigError, match="resolvers"):
        make_judge(["openai", "model=${oc.env:GROUNDLING_SECRET}"])
    words = ["distill", str(tmp_path), "--preferences", "x", "--output", str(tmp_path / "out")]
    assert "resolvers" in refusal(capsys, [*words, "model.args.path=${oc.env:GROUNDLING_SECRET}"])
    assert "GROUNDLING_SECRET" not in asked
