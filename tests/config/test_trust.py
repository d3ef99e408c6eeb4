"""Untrusted files can only set harmless values. Each attack worked in the past, or could have."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundling.cli.main import main
from groundling.config import Config
from groundling.config.compose import compose, from_file, recorded, to_yaml
from groundling.errors import ConfigError, GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.load.model_files import STARTERS
from tests.config.conftest import TRUST, demo_values, refusal
from tests.judges.asking.chat_server import ChatServer, serving

SMALL = [
    *("world.num_envs=2", "training.steps=4", "world.num_steps=2", "algorithm.args.minibatch_size=2"),
    *("algorithm.args.micro_batch_size=null", "device=cpu", "evaluation.num_envs=1", "evaluation.baselines=[]"),
]
_ONLINE = "reward.reward_model.args.online"
ONLINE = ["motif/score", "device=cpu", "world.num_envs=2", "world.num_workers=0", "world.ahead=false"]


def writing_values() -> dict[str, Any]:
    """Return the settings of a text generation run as stored in its file."""
    values: dict[str, Any] = yaml.safe_load(to_yaml(compose("rl4lms/increasing_numbers_ppo")))
    return values


def hostile_model(folder: Path, marker: Path) -> Path:
    """Save a model whose folder contains Python code, which creates ``marker`` whenever it runs."""
    shutil.copytree(STARTERS["starter-causal"], folder)
    config = json.loads((folder / "config.json").read_text())
    auto = {"AutoConfig": "hostile_config.HostileConfig", "AutoModelForCausalLM": "hostile_model.HostileForCausalLM"}
    config |= {"model_type": "hostile", "architectures": ["HostileForCausalLM"], "auto_map": auto}
    (folder / "config.json").write_text(json.dumps(config))
    touch = f"open({str(marker)!r}, 'w').close()"
    (folder / "hostile_config.py").write_text(
        "from transformers import LlamaConfig\n"
        f"{touch}\n"
        "class HostileConfig(LlamaConfig):\n"
        "    model_type = 'hostile'\n"
        "    def __post_init__(self, *args, **kwargs):\n"
        f"        {touch}\n"
        "        super().__post_init__(*args, **kwargs)\n"
    )
    (folder / "hostile_model.py").write_text(
        "from transformers import LlamaForCausalLM\n"
        "from .hostile_config import HostileConfig\n"
        f"{touch}\n"
        "class HostileForCausalLM(LlamaForCausalLM):\n"
        "    config_class = HostileConfig\n"
    )
    return folder


def keep_modules_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make Transformers copy models' Python code to ``folder``, and prevent imports of earlier copies."""
    patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    patch.setattr(sys, "path", list(sys.path))  # Transformers adds the folder to it
    for name in list(sys.modules):
        if name.partition(".")[0] == "transformers_modules":
            patch.delitem(sys.modules, name)


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marker") / "it-ran"


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory, marker: Path) -> Path:
    """Train a run with the hostile model on the required command line."""
    home = tmp_path_factory.mktemp("writer")
    model = hostile_model(home / "model", marker)
    words = ["train", "demo-easy", f"run_dir={home / 'run'}", f"model.path={model}", *SMALL]
    with pytest.MonkeyPatch.context() as patch:
        keep_modules_in(home / "modules", patch)
        assert main([*words, TRUST]) == 0 and marker.exists()
        assert main([*words, TRUST]) == 0  # the same command contains these words again
    assert recorded(home / "run" / "config.yaml")["model"]["trust_remote_code"] is True
    return home / "run"


@pytest.fixture
def _modules(tmp_path: Path, marker: Path, received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_modules_in(tmp_path / "modules", monkeypatch)
    marker.unlink(missing_ok=True)


def _commands(run: Path, tmp_path: Path) -> dict[str, list[str]]:
    return {
        "evaluate": ["evaluate", str(run), "--episodes", "1"],
        "evaluate a checkpoint": ["evaluate", str(run / "checkpoints" / "000001"), "--episodes", "1"],
        "collect": ["collect", str(run), "--episodes", "1", "--output", str(tmp_path / "data")],
        "watch": ["watch", str(run)],
        "dry run": ["train", str(run / "config.yaml"), f"run_dir={tmp_path / 'new'}", "--dry-run"],
        "train": ["train", str(run / "config.yaml"), f"run_dir={tmp_path / 'new'}"],
        "slurm": ["train", str(run / "config.yaml"), f"run_dir={tmp_path / 'new'}", "--slurm", "--dry-run"],
        "report": ["report", str(run), "--output", str(tmp_path / "report.html")],
        "publish": ["publish", str(run), "--output", str(tmp_path / "pub")],
    }


@pytest.mark.usefixtures("_modules")
@pytest.mark.parametrize(
    "command", ["evaluate", "evaluate a checkpoint", "collect", "watch", "dry run", "train", "slurm"]
)
def test_a_received_run_executes_nothing_and_says_which_words_would(
    received: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    error = refusal(capsys, _commands(received, tmp_path)[command])
    assert f"add to the command: {TRUST}\n" in error and "config.yaml sets model.trust_remote_code" in error
    assert not marker.exists()
    assert not (tmp_path / "new").exists() and not (tmp_path / "data").exists()


@pytest.mark.usefixtures("_modules")
def test_reports_and_publishing_execute_nothing_and_tell_no_paths(
    received: Path, marker: Path, tmp_path: Path
) -> None:
    run, checkpoint = tmp_path / "copy", "checkpoints/000001"
    shutil.copytree(received, run)
    (run / checkpoint / "notes.txt").symlink_to("/etc/passwd")
    for command in ("report", "publish"):
        assert main(_commands(run, tmp_path)[command]) == 0
    assert not marker.exists()
    assert not (tmp_path / "pub" / "notes.txt").exists()  # it would be the publisher's own file
    files = [tmp_path / "report.html", *(tmp_path / "pub").rglob("*")]
    files = [p for p in files if p.suffix in (".html", ".md", ".yaml", ".json")]
    assert {"report.html", "README.md", "config.yaml", "config.json"} <= {p.name for p in files}
    for path in files:
        assert str(received.parent) not in path.read_text(), path
    settings = yaml.safe_load((tmp_path / "pub" / "config.yaml").read_text())
    assert (settings["run_dir"], settings["model"]["path"]) == ("run", "./model")
    assert "base_model:" not in (tmp_path / "pub" / "README.md").read_text()


@pytest.mark.usefixtures("_modules")
def test_the_words_on_the_command_line_make_it_work(received: Path, marker: Path, tmp_path: Path) -> None:
    for command in ("evaluate", "dry run"):
        marker.unlink(missing_ok=True)
        assert main([*_commands(received, tmp_path)[command], TRUST]) == 0
        assert marker.exists()
    assert main(_commands(received, tmp_path)["report"]) == 0  # although a sample now contains the words


@pytest.mark.usefixtures("_modules")
def test_a_run_is_not_gone_on_with_without_its_words(
    received: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = received.parent / "model"
    error = refusal(capsys, ["train", "demo-easy", f"run_dir={received}", f"model.path={model}", *SMALL])
    assert "model.trust_remote_code=True (now False)" in error and not marker.exists()


def test_what_an_adapter_stands_on_has_none_that_imports_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # as with `python -m groundling` and --import
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "__init__.py").touch()
    (tmp_path / "megatron" / "hostile.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'it-ran')!r}).touch()\n"
    )
    model = tmp_path / "model"
    shutil.copytree(STARTERS["starter-causal"], model / "base")
    settings = {"peft_type": "LORA", "base_model_name_or_path": "starter-causal", "r": 1, "lora_alpha": 1}
    settings |= {"target_modules": "all-linear"}
    (model / "adapter_config.json").write_text(json.dumps(settings))
    settings |= {"megatron_config": {"a": 1}, "megatron_core": "megatron.hostile"}
    (model / "base" / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(GroundlingError) as caught:
        LanguageModel.from_pretrained(model)
    assert not (tmp_path / "it-ran").exists()
    assert f"the model {model / 'base'} contains an adapter" in str(caught.value)


def test_a_received_run_dir_writes_no_line_of_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(demo_values() | {"run_dir": "a\ntouch y\n/b"}))
    with pytest.raises(ConfigError, match="printable"):
        from_file(tmp_path / "config.yaml")


# Servers and keys


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """Return a run's file that contains a judge of someone else's choice; the test sets the address."""
    config = compose(ONLINE[0], [*ONLINE[1:], f"run_dir={tmp_path / 'run'}"])
    path = tmp_path / "received" / "config.yaml"
    path.parent.mkdir()
    path.write_text(to_yaml(config))
    return path


def _online(config: Config) -> dict[str, Any]:
    part = config.reward["reward_model"]
    assert part is not None
    return part.args["online"]


def _write(path: Path, **online: Any) -> None:
    values = yaml.safe_load(path.read_text())
    values["reward"]["reward_model"]["args"].setdefault("online", {}).update(online)
    path.write_text(yaml.safe_dump(values))


@pytest.mark.parametrize("more", [[], ["--dry-run"], [f"{_ONLINE}.args={{model: m}}"]])
def test_a_received_judge_is_not_asked_and_no_key_is_read(
    judged: Path, more: list[str], asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ChatServer()) as server:
        args = {"model": "m", "base_url": server.url, "api_key_env": "GROUNDLING_SECRET"}
        _write(judged, judge="openai", args=args)
        error = refusal(capsys, ["train", str(judged), *more])
        assert server.bodies == []
    words = [f"{_ONLINE}.judge=openai", f"{_ONLINE}.args.base_url={server.url}"]
    words += [f"{_ONLINE}.args.api_key_env=GROUNDLING_SECRET"]
    assert all(word in error for word in words)
    assert "GROUNDLING_SECRET" not in asked
    config = from_file(judged, words)
    assert _online(config)["args"] == args
    assert _online(from_file(judged, purpose="playing"))["args"] == {"model": "m"}  # to play the run
    mine = [*words[:-1], f"{_ONLINE}.args.api_key_env=MINE"]
    assert _online(from_file(judged, mine))["args"]["api_key_env"] == "MINE"
    for overrides in (words[:-1], words[1:]):
        with pytest.raises(ConfigError, match="add to the command"):
            from_file(judged, overrides)


def test_a_judge_at_the_default_address_is_not_asked_either(judged: Path) -> None:
    """OPENAI_API_KEY would be sent to any process that listens on this machine's port."""
    _write(judged, judge="openai", args={"model": "m"})
    with pytest.raises(ConfigError, match=rf"add to the command: {_ONLINE}.judge=openai$"):
        from_file(judged)
    assert _online(from_file(judged, [f"{_ONLINE}.judge=openai"]))["judge"] == "openai"
    _write(judged, judge="rules", args={})
    assert _online(from_file(judged))["judge"] == "rules"


@pytest.mark.parametrize("wrong", ["base_url: 'https://me:hunter2@host/v1'", "base_url: 'https://h/v1?key=hunter2'"])
def test_no_key_gets_into_a_runs_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    for args in (wrong, "api_key_env: sk-hunter2"):
        words = [f"{_ONLINE}.judge=openai", f"{_ONLINE}.args={{model: m, {args}}}"]
        error = refusal(capsys, ["train", *ONLINE, f"run_dir={tmp_path / 'run'}", *words])
        assert "hunter2" not in error and not (tmp_path / "run").exists()


# Other settings that could run code or choose a server


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.trust_remote_code", True),
        ("model.trust_remote_code", "yes"),
        ("model.trust_remote_code", "${model.fsdp}"),
        ("model.attention", "somebody/kernel"),
        ("model.path", "https://example.org/model"),
        ("model.tokenizer", "https://example.org/model"),
        ("evaluation.generation", {"trust_remote_code": 1}),
        ("evaluation.generation", {"custom_generate": "somebody/generate"}),
        ("evaluation.metrics", [{"id": "bert_score", "args": {"model_name": "https://example.org/m"}}]),
        ("evaluation.metrics", [{"id": "perplexity", "args": {"trust_remote_code": True}}]),
        ("world.args", {"dataset": "csv", "path": "https://example.org/prompts.csv"}),
        ("world.args", {"trust_remote_code": True}),
        ("model.lora", {"megatron_config": {"a": 1}, "megatron_core": "os.path"}),
        ("reward.rouge", {"args": {"options": [{"trust_remote_code": [True]}]}}),
        ("policy.args", {"base_url": "http://127.0.0.1:1/v1"}),
        ("algorithm.args", {"api_key_env": "PATH"}),
        ("world.args", {"api_key_env": "PATH"}),
        ("world.args", {"savedir": "games"}),
        ("world.args", {"save_ttyrec_every": 1}),
    ],
)
def test_a_file_alone_cannot_say_it(tmp_path: Path, key: str, value: Any) -> None:
    section, name = key.split(".")
    values = writing_values() if section == "evaluation" else demo_values()
    values[section][name] = value
    if value == "${model.fsdp}":
        values["model"]["fsdp"] = True
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=rf"add to the command: .*{key}"):
        from_file(tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match=r"add to the command: .*"):  # an empty mapping is merged without effect
        from_file(tmp_path / "config.yaml", ["world.args={}", "seed=3"])


def test_a_run_that_recorded_its_games_is_played_without_recording(tmp_path: Path) -> None:
    path, values = tmp_path / "config.yaml", demo_values()
    values["world"]["args"] = {"savedir": "games", "save_ttyrec_every": 1}
    path.write_text(yaml.safe_dump(values))
    assert from_file(path, purpose="playing").world.args == {}
    words = ["world.args.savedir=mine", "world.args.save_ttyrec_every=2"]
    assert from_file(path, words, purpose="playing").world.args == {"savedir": "mine", "save_ttyrec_every": 2}
    with pytest.raises(ConfigError, match=r"sets world.args.save_ttyrec_every, world.args.savedir, but no"):
        from_file(path)
    values["world"]["args"] = {"save_ttyrec_every": 0}  # nothing is recorded
    path.write_text(yaml.safe_dump(values))
    assert from_file(path).world.args == {"save_ttyrec_every": 0}


def test_the_words_that_are_told_are_safe_in_a_shell(tmp_path: Path) -> None:
    values = demo_values()
    values["policy"]["args"] = {"base_url": "http://x/$(touch y)`touch y`'; touch y; '"}
    values["world"]["args"] = {"x; touch y; .trust_remote_code": 1, "base_url": "http://\x1b[2J"}
    values["world"]["args"]["$(touch y).trust_remote_code"] = True
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as error:
        from_file(tmp_path / "config.yaml")
    words = str(error.value).partition("add to the command: ")[2]
    assert words.count("trust_remote_code") == 2 and "\x1b" not in str(error.value)
    assert os.system(f"cd {tmp_path} && : {words}") == 0 and not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [/hydra/launcher: joblib]",
        "hydra: {job: {env_copy: [GROUNDLING_SECRET]}}",
        "_target_: os.system",
        "policy: {_target_: os.system}",
        "policy: {id: os.system}",
        "world: {id: text, env: 'os:Env-v0', args: {_target_: os.system}}",
        "name: !!python/object/apply:os.getcwd []",
        "name: !!python/name:os.system",
    ],
)
def test_a_file_that_is_more_than_settings_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    settings = {
        "world": "{id: text, env: BabyAI-GoToObj-v0}",
        "name": "x",
        "policy": "{id: random}",
        "algorithm": "{id: ppo}",
    }
    settings.pop(text.partition(":")[0], None)
    path.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()) + text + "\n")
    refusal(capsys, ["train", str(path), f"run_dir={tmp_path / 'new'}", "--dry-run"])
