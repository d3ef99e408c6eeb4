"""What others' files can do: nothing but set what is harmless. Each attack is one that worked, or might."""

import copy
import functools
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
from groundling.config.compose import changed, compose, from_file, recorded, to_yaml
from groundling.config.facts import shareable, shareable_words
from groundling.errors import ConfigError, GroundlingError
from groundling.evaluation.evaluate import played_with
from groundling.fields import flat
from groundling.lm import LanguageModel
from groundling.lm.load.adapters import adapter_base
from groundling.lm.load.model_files import STARTERS
from groundling.studies.definition import read_study
from groundling.training.build import dry_run
from tests.judges.asking.chat_server import ChatServer, serving

SECRET = "swordfish-in-the-environment"
SMALL = [
    *("world.num_envs=2", "training.steps=4", "world.num_steps=2", "algorithm.args.minibatch_size=2"),
    *("algorithm.args.micro_batch_size=null", "device=cpu", "evaluation.num_envs=1", "evaluation.baselines=[]"),
]
TRUST = "model.trust_remote_code=true"
_ONLINE = "reward.reward_model.args.online"
ONLINE = ["motif/score", "device=cpu", "world.num_envs=2", "world.num_workers=0", "world.ahead=false"]


@functools.cache
def demo() -> Config:
    return compose("demo-easy")


def demo_values() -> dict[str, Any]:
    """As a run's file has them."""
    return copy.deepcopy(_demo_values())


def writing_values() -> dict[str, Any]:
    """As a run's file has them that writes texts."""
    values: dict[str, Any] = yaml.safe_load(to_yaml(compose("rl4lms/increasing_numbers_ppo")))
    return values


@functools.cache
def _demo_values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(to_yaml(demo()))
    return values


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDLING_SECRET", SECRET)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the environment's variables that are read."""
    names: list[str] = []
    kept: Any = type(os.environ).__getitem__

    def read(environ: Any, name: str) -> str:
        names.append(name)
        value: str = kept(environ, name)
        return value

    monkeypatch.setattr(type(os.environ), "__getitem__", read)
    return names


def hostile_model(folder: Path, marker: Path) -> Path:
    """A model whose folder brings Python of its own, which leaves ``marker`` behind whenever it runs."""
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
    """Let Transformers copy models' Python to ``folder``, and import none from where it was copied before."""
    patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    patch.setattr(sys, "path", list(sys.path))  # to which it adds the folder
    for name in list(sys.modules):
        if name.partition(".")[0] == "transformers_modules":
            patch.delitem(sys.modules, name)


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marker") / "it-ran"


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory, marker: Path) -> Path:
    """A run with the hostile model, trained by somebody who said the words."""
    home = tmp_path_factory.mktemp("writer")
    model = hostile_model(home / "model", marker)
    words = ["train", "demo-easy", f"run_dir={home / 'run'}", f"model.path={model}", *SMALL]
    with pytest.MonkeyPatch.context() as patch:
        keep_modules_in(home / "modules", patch)
        assert main([*words, TRUST]) == 0 and marker.exists()
        assert main([*words, TRUST]) == 0  # the same command again has the words again
    assert recorded(home / "run" / "config.yaml")["model"]["trust_remote_code"] is True
    return home / "run"


@pytest.fixture
def _modules(tmp_path: Path, marker: Path, received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_modules_in(tmp_path / "modules", monkeypatch)
    marker.unlink(missing_ok=True)


def _line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1, captured.err
    assert SECRET not in captured.err + captured.out
    return captured.err


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
    error = _line(capsys, _commands(received, tmp_path)[command])
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
    assert main(_commands(received, tmp_path)["report"]) == 0  # although a sample holds the words by now


@pytest.mark.usefixtures("_modules")
def test_a_run_is_not_gone_on_with_without_its_words(
    received: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = received.parent / "model"
    error = _line(capsys, ["train", "demo-easy", f"run_dir={received}", f"model.path={model}", *SMALL])
    assert "model.trust_remote_code=True (now False)" in error and not marker.exists()


def test_an_adapter_imports_no_module(tmp_path: Path) -> None:
    settings = {"base_model_name_or_path": "starter", "megatron_config": {"a": 1}, "megatron_core": "this"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(GroundlingError, match="megatron_config to null"):
        adapter_base(str(tmp_path))


def test_what_an_adapter_stands_on_has_none_that_imports_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m groundling` and --import have it
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
    assert f"the model {model / 'base'} has an adapter of its own" in str(caught.value)


def test_a_received_run_dir_writes_no_line_of_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(demo_values() | {"run_dir": "a\ntouch y\n/b"}))
    with pytest.raises(ConfigError, match="printable"):
        from_file(tmp_path / "config.yaml")


# Servers and keys


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A run's file with a judge of somebody else's choice; its address is to be filled in."""
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
        error = _line(capsys, ["train", str(judged), *more])
        assert server.bodies == []
    words = [f"{_ONLINE}.judge=openai", f"{_ONLINE}.args.base_url={server.url}"]
    words += [f"{_ONLINE}.args.api_key_env=GROUNDLING_SECRET"]
    assert all(word in error for word in words)
    assert "GROUNDLING_SECRET" not in asked
    config = from_file(judged, words)
    assert _online(config)["args"] == args
    assert _online(from_file(judged, purpose="playing"))["args"] == {"model": "m"}  # to be played
    mine = [*words[:-1], f"{_ONLINE}.args.api_key_env=MINE"]
    assert _online(from_file(judged, mine))["args"]["api_key_env"] == "MINE"
    for overrides in (words[:-1], words[1:]):
        with pytest.raises(ConfigError, match="add to the command"):
            from_file(judged, overrides)


def test_a_judge_at_the_default_address_is_not_asked_either(judged: Path) -> None:
    """It would be sent OPENAI_API_KEY, by whatever listens on this machine's port."""
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
        error = _line(capsys, ["train", *ONLINE, f"run_dir={tmp_path / 'run'}", *words])
        assert "hunter2" not in error and not (tmp_path / "run").exists()


def test_what_is_given_away_names_no_server_and_no_key() -> None:
    args = {"model": "/home/ada/m", "base_url": "http://10.0.0.7:8000/v1", "api_key_env": "MY_KEY"}
    assert shareable({"args": args, "list": [r"C:\Users\ada\x", "runs/a", "~/b", "/", "/no\nlines"]}) == {
        "args": {"model": "m"},
        "list": ["x", "runs/a", "b", "/", "/no\nlines"],
    }
    assert shareable("file:///home/ada/pool.csv") == "pool.csv" and shareable(None) is None
    assert shareable({"http://host:8000/v1": 1, "a": 2}) == {"a": 2}


def test_what_is_given_away_has_no_address_and_no_place_inside_a_text() -> None:
    args = {
        "url": "https://ada:hunter2@levels.intern:8443/v1",
        "note": "levels\nof http://10.0.0.7",
        "pools": ["hf://datasets/ada/p", "b", "-file:///home/ada/p.csv"],
        "options": "cache=/home/ada/secret,maps=C:\\ada\\maps (~/q)",
        "files": "a=file:///home/ada/p.csv b: file:/home/ada/q.csv",
        "lines": "look\nat /home/ada/maps",
        "system": {"base_url": "http://10.0.0.7:8000", "api_key_env": "MY_KEY", "text": "1/2, yes / no, </think>"},
        "seed": 1,
    }
    given = {
        "pools": ["b"],
        "options": "cache=secret,maps=maps (q)",
        "files": "a=p.csv b: q.csv",
        "lines": "look\nat maps",
        "system": {"text": "1/2, yes / no, </think>"},
        "seed": 1,
    }
    for node, shared in ((args, given), ({"policy": {"args": args}}, {"policy": {"args": given}})):
        assert shareable(node) == shared == shareable(shared)  # what was given away is compared with what would be
    assert shareable(args["url"]) == ""


def test_what_a_model_reads_is_given_away_as_it_is() -> None:
    """Else the agent that is loaded would be another one, and one evaluation would pass for that of another prompt."""
    args = {
        "system": "/no_think Answer left/right. The rules: https://rules.example/v1",
        "replacements": {"http://a": "/home/ada/key"},
        "thought_ends": "://",
    }
    pool = {"prompt_prefix": "See https://a.org: ", "prompt_suffix": " in /usr/bin/x form", "path": "/home/ada/p.csv"}
    config = {"world": {"actions": ["open https://a.org", "stay"], "args": pool}, "policy": {"args": args}}
    given = {**config, "world": {**config["world"], "args": {**pool, "path": "p.csv"}}}
    assert shareable(config) == given and shareable(flat(config)) == flat(given)
    mine = {"world": {"args": {"actions": "/home/ada/secret/actions.txt", "system": "http://10.0.0.7"}}}  # an env's
    assert shareable(mine) == {"world": {"args": {"actions": "actions.txt"}}}
    words = ["policy.args.system='See https://a.org'", "+arms.a.world.system=at /root/agent x"]
    assert shareable_words([*words, "world.args.system=at /root/agent x"]) == [*words, "world.args.system=at agent x"]
    played = [compose("demo", [f"policy.args={{prompt: conversation, system: '/{word}/turn'}}"]) for word in "ab"]
    assert played_with(played[0]) != played_with(played[1])


def test_a_command_line_is_given_away_without_places() -> None:
    words = ["study", "/home/ada/s.yaml", "seeds=1,2", "arms.a.model.path=/home/ada/m", "--runs", "/home/ada/runs"]
    words += ["x.args={base_url: h, a: 1}", "y.base_url=http://10.0.0.7/v1", "z.api_key_env=MY_KEY", "device=cpu"]
    words += ["world.args={path: /home/ada/p.csv, b: [~/q, 'C:\\\\Users\\\\ada'], c: 1/2}", "p=a=/home/ada/m"]
    plain = ["study", "s.yaml", "seeds=1,2", "arms.a.model.path=m", "--runs", "runs", "device=cpu"]
    assert shareable_words(words) == [*plain, "world.args={path: p.csv, b: [q, 'ada'], c: 1/2}", "p=a=m"]


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
    with pytest.raises(ConfigError, match=r"add to the command: .*"):  # an empty mapping is merged, and takes nothing
        from_file(tmp_path / "config.yaml", ["world.args={}", "seed=3"])


def test_a_run_that_recorded_its_games_is_played_without_recording(tmp_path: Path) -> None:
    path, values = tmp_path / "config.yaml", demo_values()
    values["world"]["args"] = {"savedir": "games", "save_ttyrec_every": 1}
    path.write_text(yaml.safe_dump(values))
    assert from_file(path, purpose="playing").world.args == {}
    words = ["world.args.savedir=mine", "world.args.save_ttyrec_every=2"]
    assert from_file(path, words, purpose="playing").world.args == {"savedir": "mine", "save_ttyrec_every": 2}
    with pytest.raises(ConfigError, match=r"sets world.args.save_ttyrec_every, world.args.savedir, and no"):
        from_file(path)
    values["world"]["args"] = {"save_ttyrec_every": 0}  # nothing is recorded
    path.write_text(yaml.safe_dump(values))
    assert from_file(path).world.args == {"save_ttyrec_every": 0}


@pytest.mark.usefixtures("_modules")
def test_a_report_has_no_env_write_files(received: Path, tmp_path: Path) -> None:
    pytest.importorskip("nle")
    run, games = tmp_path / "run", tmp_path / "games"
    # Without episodes, which were played in another env.
    shutil.copytree(received, run, ignore=shutil.ignore_patterns("samples"))
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["world"] |= {"env": "NetHackScore-v1", "actions": None}
    values["world"]["args"] = {"savedir": str(games), "save_ttyrec_every": 1}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert main(["report", str(run), "--output", str(tmp_path / "report.html")]) == 0
    assert not games.exists()


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
    _line(capsys, ["train", str(path), f"run_dir={tmp_path / 'new'}", "--dry-run"])


# The environment

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


@pytest.mark.parametrize("command", ["evaluate", "collect", "watch", "dry run", "train", "report", "publish"])
@pytest.mark.usefixtures("_modules")
def test_a_received_run_reads_no_environment(
    received: Path, tmp_path: Path, asked: list[str], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(received, run)
    values = yaml.safe_load((run / "config.yaml").read_text()) | {"name": RESOLVERS[0]}
    values["model"]["trust_remote_code"] = False
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert "name='${oc.env:GROUNDLING_SECRET}' is not read" in _line(capsys, _commands(run, tmp_path)[command])
    assert "GROUNDLING_SECRET" not in asked


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("name: ${oc.env:GROUNDLING_SECRET}", "resolvers"),
        ("defaults: ['/own/${oc.env:GROUNDLING_SECRET}']", "resolvers"),
        ("defaults: [/own/more]", "more.yaml: name='${oc.env:GROUNDLING_SECRET}' is not read"),
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
    assert why in _line(capsys, ["train", "own", *words])
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
    _line(capsys, ["convert", str(tmp_path / "glam.yaml")])
    rl4lms = {"alg": {"id": "ppo", "model_name": text}, "datapool": {"id": "imdb"}}
    (tmp_path / "rl4lms.yaml").write_text(yaml.safe_dump(rl4lms | hidden))
    _line(capsys, ["convert", str(tmp_path / "rl4lms.yaml")])
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
    """A report makes envs again as the samples say, and samples are files."""
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
    assert "resolvers" in _line(capsys, [*words, "model.args.path=${oc.env:GROUNDLING_SECRET}"])
    assert "GROUNDLING_SECRET" not in asked


def test_a_dry_run_asks_for_no_words_that_were_said() -> None:
    words = ["model.path=starter-causal", TRUST, *SMALL]
    assert dry_run(compose("demo-easy", words)).parameters > 0
