"""The properties of a key are declared once, and everything that depends on them reads them there."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

from groundling import fields
from groundling.algorithms import PPO
from groundling.algorithms.algorithm import algorithms
from groundling.config import schema
from groundling.config.compose import compose, from_file, to_yaml
from groundling.config.facts import facts_of, has_fact, shareable, shareable_words
from groundling.config.schema import Config, TrainingConfig, config_of
from groundling.errors import ConfigError
from groundling.evaluation.target import Target, find
from groundling.fields import CommandLineOnly, FixedByTraining, MayChangeOnResume, NoEffectOnResults, Private, Section
from groundling.reports import publish
from groundling.reports.run_folder import read_run
from groundling.training.checkpoint import open_run, write_settings
from groundling.worlds import worlds


class _Training(TrainingConfig):
    badge: Annotated[str | None, Private, CommandLineOnly] = None
    nickname: Annotated[str, MayChangeOnResume] = "one"
    motto: str = "onwards"


class _PPO(PPO):
    def __init__(
        self,
        password_file: Annotated[str | None, Private] = None,
        pace: Annotated[int, NoEffectOnResults] = 1,
        **args: Any,
    ) -> None:
        super().__init__(**args)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add new keys to the section ``training``, and a new algorithm with new arguments."""
    monkeypatch.setattr(fields, "_names", {name: set(names) for name, names in fields._names.items()})
    planted = {"training": (_Training, _Training())}
    monkeypatch.setattr(schema, "Config", schema.create_model("Config", __base__=Config, **planted))  # type: ignore[call-overload]
    monkeypatch.setattr(algorithms, "_factories", dict(algorithms._factories))
    monkeypatch.setattr(algorithms, "_origins", dict(algorithms._origins))
    algorithms.register("planted")(_PPO)
    schema.config_of.cache_clear()
    yield
    schema.config_of.cache_clear()


def _composed(*words: str) -> Config:
    return compose("demo-easy", ["~algorithm.args", "algorithm.id=planted", "device=cpu", *words])


@pytest.mark.usefixtures("planted")
def test_a_new_private_key_is_shared_by_nothing(tmp_path: Path) -> None:
    words = ["training.badge=S3CR3T", "algorithm.args.password_file=S3CR3T", "training.motto=shown"]
    config = _composed(*words, f"run_dir={tmp_path}")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    shared = [shareable(config.model_dump()), shareable({"arms": {"a": config.model_dump()}}), shareable_words(words)]
    shared += [read_run(tmp_path).settings, publish._settings(Target("trained", tmp_path, config))]
    assert all("S3CR3T" not in str(one) and "shown" in str(one) for one in shared)


@pytest.mark.usefixtures("planted")
def test_a_new_key_of_the_command_line_is_refused_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(_composed("training.badge=x")))
    with pytest.raises(ConfigError, match=r"sets training\.badge, .* add to the command: training\.badge=x$"):
        from_file(tmp_path / "config.yaml")
    assert from_file(tmp_path / "config.yaml", ["training.badge=x"]).training.badge == "x"  # type: ignore[attr-defined]
    assert from_file(tmp_path / "config.yaml", purpose="showing").training.badge is None  # type: ignore[attr-defined]


@pytest.mark.usefixtures("planted")
def test_a_new_key_may_change_on_resume_where_it_says_so(tmp_path: Path) -> None:
    first = _composed("algorithm.args.pace=2").model_dump()
    write_settings(tmp_path, first)
    (tmp_path / "checkpoints").mkdir()
    same = _composed("training.nickname=two", "algorithm.args.pace=3")
    with open_run(tmp_path, same.model_dump()):
        pass
    with (
        pytest.raises(ConfigError, match=r"training\.motto='onwards' \(now 'back'\)"),
        open_run(tmp_path, _composed("training.motto=back", "algorithm.args.pace=2").model_dump()),
    ):
        pass


@pytest.mark.usefixtures("planted")
def test_a_new_argument_without_effect_changes_no_evaluation(tmp_path: Path) -> None:
    words = ["algorithm.args.pace=2", "training.nickname=x", "world.num_workers=0", "world.history=2"]
    target = find("demo-easy", ["~algorithm.args", "algorithm.id=planted", *words], pytest.fail)
    assert "algorithm.args.pace=2" not in target.changes and "world.history=2" in target.changes
    (tmp_path / "config.yaml").write_text(to_yaml(_composed()))
    with pytest.raises(ConfigError, match=r"algorithm.args.pace=2 is fixed by training"):
        find(str(tmp_path), ["algorithm.args.pace=2"], pytest.fail)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("run_dir", {"NoEffectOnResults"}),
        ("world.num_workers", {"NoEffectOnResults"}),
        ("world.probes", {"MayChangeOnResume", "TrainingOnly"}),
        ("evaluation.num_envs", {"MayChangeOnResume", "NoEffectOnResults"}),
        ("evaluation.metrics[0].args.x", {"MayChangeOnResume", "OfEvaluation"}),
        ("policy.id", {"FixedByTraining"}),
        ("policy.args.system", {"ReadByModel"}),
        ("policy.args.base_url", {"CommandLineOnly", "Private"}),
        ("algorithm.args.micro_batch_size", {"FixedByTraining", "NoEffectOnResults"}),
        ("reward.mine.args.online.args.api_key_env", {"TrainingOnly", "CommandLineOnly", "Private"}),
        ("model.lora.megatron_core", {"CommandLineOnly"}),
        ("model.lora.r", set()),
        ("training.none.x", set()),
    ],
)
def test_facts_are_read_from_declarations(key: str, names: set[str]) -> None:
    assert {fact.name for fact in facts_of(key)} == names


def test_an_arguments_facts_are_those_of_the_component_that_has_it() -> None:
    values = yaml.safe_load(to_yaml(compose("demo-easy")))
    for id, may_change in (("reward_model", True), ("weighted_sum", False)):
        values["reward"] = {"mine": {"id": id, "args": {"path": "x"}}}
        assert has_fact(MayChangeOnResume, "reward.mine.args.path", values) == may_change
    assert has_fact(FixedByTraining, "algorithm.id", values)


def _keys(model: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, f"{prefix}{name}.")


def test_no_list_of_keys_stands_outside_the_declarations() -> None:
    keys = {key for id in worlds for key in _keys(config_of(id)) if "." in key}
    assert {"world.num_envs", "training.steps", "evaluation.episodes"} <= keys
    source = Path(schema.__file__).parents[1]
    found = []
    for path in source.rglob("*.py"):
        if "convert" in path.parts:  # it maps other systems' keys to ours
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            entries = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else []
            entries = node.keys if isinstance(node, ast.Dict) else entries
            named = [one.value for one in entries if isinstance(one, ast.Constant) and one.value in keys]
            if len(named) > 2:
                found.append(f"{path.relative_to(source)}:{node.lineno}: {named}")
    assert not found, "\n".join(found)
