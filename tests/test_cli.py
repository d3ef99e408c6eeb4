"""The command line, called as by users."""

import argparse
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from rich.table import Table

from groundling.cli import main as cli
from groundling.cli.main import main
from groundling.evaluation.target import find
from groundling.io.terminal import episode_bars, make_console
from groundling.reports import page as report
from groundling.reports.run_folder import read_run

_SMALL = [
    *("world.num_envs=4", "training.steps=48", "world.num_steps=4"),
    *("algorithm.args.minibatch_size=8", "algorithm.args.micro_batch_size=null", "device=cpu"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "demo-easy"
    assert main(["train", "demo-easy", f"run_dir={run_dir}", *_SMALL]) == 0
    return run_dir


def _error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail, and return its only line."""
    assert main(arguments) != 0
    captured = capsys.readouterr().err
    assert captured.startswith("error: ") and captured.count("\n") == 1, captured
    return captured


@pytest.mark.usefixtures("all_figures")
def test_train_evaluate_report(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len((trained / "metrics.jsonl").read_text().splitlines()) == 3
    assert main(["evaluate", str(trained), "--episodes", "6"]) == 0
    output = capsys.readouterr().out
    evaluation = json.loads((trained / "evaluation" / "held-out.json").read_text())
    assert list(evaluation["agents"]) == ["trained", "zero-shot", "random", "expert"]
    for name, figures in evaluation["agents"].items():
        assert name in output and figures["episodes"] == 6
    assert evaluation["agents"]["expert"]["figures"]["success"]["value"] == 1
    assert len((trained / "evaluation" / "held-out.csv").read_text().splitlines()) == 1 + 4 * 6
    assert main(["report", str(trained)]) == 0
    page = (trained / "report.html").read_text()
    assert str((trained / "report.html").resolve()) in capsys.readouterr().out
    assert page.count("<svg") == 2 and "data:image/png;base64," in page
    assert not re.findall(r"""(?:src|href)=["']https?:|url\(https?:|@import""", page)  # self-contained
    assert "pick up the " in page and "turn left" in page


def test_version_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in ((["--version"], "groundling "), (["--print-completion", "bash"], "--dry-run")):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and expected in capsys.readouterr().out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_examples_of_help_are_command_lines(command: str) -> None:
    parser = cli.make_parser()
    (commands,) = (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    lines = commands[command].epilog.splitlines()[1:]
    assert lines
    for line in lines:
        words = shlex.split(re.split(r"\s{3,}", line.strip())[0])
        assert words[:2] == ["groundling", command]
        arguments, more = parser.parse_known_args(words[1:])
        assert not more or hasattr(arguments, "overrides")


def test_list_gives_an_overview_and_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    overview = capsys.readouterr().out
    assert "BabyAI-… (" in overview and len(overview.splitlines()) < 100
    for name in ("ppo", "action_scoring", "starter-causal", "held-out", "glam/… ("):
        assert name in overview
    assert main(["list", "envs"]) == 0
    assert "\n  BabyAI-MixedTrainLocal-v0  " in capsys.readouterr().out
    assert main(["list", "--search", "STAIRS", "nethack"]) == 0
    assert capsys.readouterr().out.startswith("agents (1):\n  explorer")
    assert main(["list", "policies", "--search", "drrn"]) == 0
    assert capsys.readouterr().out.startswith("policies (1):\n  drrn")
    assert "nothing in policies has stairs" in _error(capsys, "list", "policies", "--search", "stairs")


def test_agents_and_experiments_are_evaluated_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--episodes", "3", "world.env=BabyAI-GoToObj-v0", "evaluation.num_envs=3", "device=cpu"]
    assert main(["evaluate", "expert", *few, f"run_dir={tmp_path / 'bot'}"]) == 0
    figures = json.loads((tmp_path / "bot" / "evaluation" / "held-out.json").read_text())
    assert figures["agents"]["expert"]["figures"]["success"]["value"] == 1 and figures["checkpoint"] is None
    few += [f"run_dir={tmp_path / 'drrn'}", "evaluation.baselines=[random]"]
    assert main(["evaluate", "glam/drrn", *few]) == 0
    figures = json.loads((tmp_path / "drrn" / "evaluation" / "held-out.json").read_text())
    assert list(figures["agents"]) == ["zero-shot", "random"]
    symbolic = ["evaluate", "glam/symbolic", *few, f"run_dir={tmp_path / 'symbolic'}"]
    assert "does not apply" in _error(capsys, *symbolic, "--suite", "other-nouns")


def test_a_runs_config_file_is_an_experiment(trained: Path, tmp_path: Path) -> None:
    assert main(["train", str(trained / "config.yaml"), f"run_dir={tmp_path / 'again'}"]) == 0
    without_times = [
        [
            {k: v for k, v in json.loads(line).items() if "second" not in k}
            for line in (run_dir / "metrics.jsonl").read_text().splitlines()
        ]
        for run_dir in (trained, tmp_path / "again")
    ]
    assert without_times[0] == without_times[1]


def test_names_are_not_read_as_markup(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    run_dir, config = tmp_path / "[link=https:a.example]a[/b] :smile:", tmp_path / "config.yaml"
    values = yaml.safe_load((trained / "config.yaml").read_text())
    config.write_text(yaml.safe_dump({**values, "run_dir": str(run_dir)}))
    assert main(["train", str(config)]) == 0
    output = capsys.readouterr().out
    assert f"training in {run_dir}\n" in output and f"evaluate {shlex.quote(str(run_dir))}\n" in output
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    console = make_console()
    with episode_bars(console, 1) as on_agent:
        on_agent("[link=https:a.example]agent[/b]")()
    console.print(Table("[/column]", title="[/title]"))
    output = capsys.readouterr().out
    for name in ("[link=https:a.example]agent[/b]", "[/column]", "[/title]"):
        assert name in output
    assert "\x1b]8;" not in output


def test_a_report_on_two_seeds_is_one_curve(trained: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "seed1", tmp_path / "seed2"
    shutil.copytree(trained, one, ignore=shutil.ignore_patterns("samples"))
    assert main(["train", "demo-easy", f"run_dir={other}", "seed=2", *_SMALL]) == 0
    assert main(["report", str(one), str(other), "--output", str(tmp_path / "both.html")]) == 0
    assert "interval over seeds" in (tmp_path / "both.html").read_text()


def test_the_checkpoint_is_a_language_model(trained: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    checkpoint = sorted((trained / "checkpoints").glob("[0-9]*"))[-1]
    assert AutoModelForSeq2SeqLM.from_pretrained(checkpoint).config.is_encoder_decoder
    assert AutoTokenizer.from_pretrained(checkpoint)("go to")["input_ids"]
    assert not [p for p in trained.rglob("*") if p.suffix in (".pt", ".pkl", ".bin", ".pickle")]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["world.env=BabyAI-GoToRedBal-v0"], "BabyAI-GoToRedBall-v0"),
        (["world.args.colour=red"], "colour"),
        (["world.language=klingon"], "klingon"),
        (["model.path=nowhere/to-be-found"], "nowhere/to-be-found"),
        (["device=cuda"], "device=cuda"),
        (["device=tpu9"], "tpu9"),
        (["policy.id=random"], "value_hidden_sizes"),
    ],
)
def test_invalid_overrides_are_reported_in_one_line(
    overrides: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # otherwise it retries for half a minute
    assert message in _error(capsys, "train", "demo-easy", f"run_dir={tmp_path}", *overrides)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        (["--steps", "100"], ": settings are overrides, as in training.steps=100\n"),
        (["--lr=1e-3", "seed=2"], "as in algorithm.args.learning_rate=1e-3\n"),
        (["--num-envs", "4"], "as in world.num_envs=4 or evaluation.num_envs=4\n"),
        (["--judge", "J", "seed=2"], "unrecognized arguments: --judge J seed=2\n"),
    ],
)
def test_an_option_that_is_a_setting_is_named(
    option: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "demo", *option])
    assert capsys.readouterr().err.endswith(advice)
    with pytest.raises(SystemExit):
        main(["train"])
    assert capsys.readouterr().err.endswith("arguments are required: experiment\n")


def test_other_mistakes_are_reported_in_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "demo-easy" in _error(capsys, "train", "dmo")
    assert "world.num_envs" in _error(capsys, "train", "demo-easy", "world.num_env=3")
    assert "learning_rate" in _error(
        capsys, "train", "demo-easy", f"run_dir={trained}", *_SMALL, "algorithm.args.learning_rate=1"
    )
    assert "world.num_steps=4 (now 8)" in _error(
        capsys, "train", "demo-easy", f"run_dir={trained}", *_SMALL, "world.num_steps=8"
    )
    assert "~policy.args" in _error(capsys, "train", "demo-easy", "policy.id=symbolic")
    assert "held-out" in _error(capsys, "evaluate", str(trained), "--suite", "heldout")
    assert "config.yaml" in _error(capsys, "evaluate", str(tmp_path))
    assert "config.yaml" in _error(capsys, "report", str(tmp_path))
    assert "modules are searched for in the current folder" in _error(capsys, "list", "--import", "no_such_module")
    file = "tests/envs/doors.py"
    assert f"{file} is a file: pass a module's name, as in --import doors, run in /" in _error(
        capsys, "list", "--import", file
    )
    assert "as in doors:Doors" in _error(capsys, "check-env", "doors.Doors")
    assert "did you mean 'Doors'" in _error(capsys, "check-env", "tests.envs.doors:Dors")
    ours = ["train", "demo", "world.env=MiniGrid-Empty-5x5-v0"]
    assert "~world.args removes the experiment's arguments" in _error(capsys, *ours)
    assert "algorithms" in _error(capsys, "list", "algorithm")


def test_weights_in_4_bits_are_not_trained_but_may_be_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["model.load_in_4bit=true", f"run_dir={tmp_path}"]
    for more in ([], ["--dry-run"]):
        assert "set model.lora" in _error(capsys, "train", "demo-easy", *overrides, *more)
    assert find("demo-easy", overrides, print).config.model.load_in_4bit


def test_the_heading_of_a_table_names_changed_settings(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("evaluation"))
    words = ["evaluate", str(run), "--episodes", "1", "evaluation.baselines=[random]", "device=cpu"]
    assert main(words) == 0
    assert "1 episodes" in (first := capsys.readouterr().out) and "max_steps" not in first
    assert report._levels(read_run(run), "success").keys() == {"random"}
    assert main([*words, "world.args.max_steps=3"]) == 0
    assert "1 episode · world.args.max_steps=3 " in " ".join(capsys.readouterr().out.split())
    assert report._levels(read_run(run), "success") == {}, "lines in the plot of a run are of its own world"


def test_options_may_follow_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = f"run_dir={tmp_path / 'dry'}"
    assert main(["train", "demo-easy", "world.num_envs=2", "--dry-run", "seed=7", run_dir]) == 0
    assert "seed: 7" in capsys.readouterr().out
    assert "run_dir" in _error(capsys, "train", "demo-easy", "seed=1,2", run_dir)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (
            ["collect", "bot", "--episodes", "1", "--length", "4", "--output", "d"],
            "length has no effect with --episodes",
        ),
        (
            ["collect", "bot", "--pairs", "1", "--only-success", "--output", "d"],
            "only-success has no effect with --pairs",
        ),
        (["check-env", "BabyAI-GoToLocal-v0", "--config-dir", "."], "config-dir has no effect without --experiment"),
        (
            ["check-env", "BabyAI-GoToLocal-v0", "training.steps=5"],
            "accepts only overrides of world, policy and model",
        ),
        (["evaluate", "demo-easy", "--jobs", "2"], "jobs has no effect with one suite"),
        (["evaluate", "random", "--config-dir", "."], "has no experiment 'random'"),
    ],
)
def test_options_without_effect_are_refused(
    words: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    assert option in capsys.readouterr().err
