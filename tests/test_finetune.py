"""`groundling.finetune` and ``groundling train writing --prompts … --reward …``: own prompts, rewards and models."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import groundling as gl
from groundling.cli.main import main
from groundling.lm.load.model_files import STARTERS
from groundling.rewards import rewards
from groundling.training.tracking import read_metrics
from groundling.worlds.writing.config import WritingConfig
from tests.runs import error_of

SMALL = ["world.num_texts=4", "world.texts_per_prompt=2", "world.num_tokens=4", "evaluation.episodes=4", "device=cpu"]
ROWS = [{"prompt": f"{n} {n + 1}", "answer": str(n + 2)} for n in range(20)]
CHATS = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def digits(completions: list[str], **kwargs: Any) -> list[float]:
    return [sum(letter.isdigit() for letter in text) / max(1, len(text)) for text in completions]


def right(completions: list[str], answer: list[str]) -> list[float | None]:
    return [float(text.split()[:1] == [a]) for text, a in zip(completions, answer, strict=True)]


def of_messages(prompts: list[Any], completions: list[Any], **kwargs: Any) -> list[float]:
    assert prompts[0][0]["role"] == "user"
    return [float(len(said[0]["content"])) for said in completions]


@dataclass
class Polite:
    wanted: str = "please"

    def __call__(self, completions: list[str]) -> list[float]:
        return [float(self.wanted in text) for text in completions]


def _finetune(folder: Path, *overrides: str, **changes: Any) -> gl.Run:
    given: dict[str, Any] = {"model": "starter-causal", "reward_funcs": digits, "train_dataset": ROWS, "steps": 8}
    return gl.finetune(**{**given, **changes}, run_dir=folder, overrides=[*SMALL, *overrides])


def _config(folder: Path) -> str:
    return (folder / "config.yaml").read_text()


def test_a_run_is_the_users_own_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    run = _finetune(folder, reward_funcs=[digits, right], reward_weights=[1, 0.5])
    assert (
        "digits-right: 16 samples for training, 2 held out for validation and 2 for evaluation"
        in capsys.readouterr().out
    )
    assert "increasing" not in _config(folder) and "name: digits-right-grpo" in _config(folder)
    assert {"reward/digits", "reward/right"} <= run.metrics[0].keys()
    evaluation = run.evaluate(episodes=2)
    assert evaluation.world == "pool digits-right" and "reward" in evaluation.figures["trained"]
    assert isinstance(run.agent().act("1 2"), str)
    before = len(run.metrics)
    longer = _finetune(folder, reward_funcs=[digits, right], reward_weights=[1, 0.5], steps=30)
    assert longer.metrics[:before] == run.metrics[:before] and len(longer.metrics) > before
    with pytest.raises(gl.ConfigError, match=r"digits-right\.jsonl differs from the data passed"):
        _finetune(folder, reward_funcs=[digits, right], reward_weights=[1, 0.5], train_dataset=ROWS[:9])


@pytest.mark.parametrize(
    ("data", "reward"),
    [
        ([row["prompt"] for row in ROWS], digits),
        (datasets.Dataset.from_list(ROWS), right),
        (CHATS, of_messages),
        (ROWS[:1], "dates"),
        (ROWS, [Polite(), (lambda completions: [1.0] * len(completions))]),
    ],
    ids=["strings", "dataset", "conversations", "one row", "objects"],
)
def test_data_of_every_kind(data: Any, reward: Any, tmp_path: Path) -> None:
    if data is CHATS:
        with pytest.warns(UserWarning, match="no chat template, so messages are read as plain text"):
            run = _finetune(tmp_path / "run", train_dataset=data, reward_funcs=reward)
    else:
        run = _finetune(tmp_path / "run", train_dataset=data, reward_funcs=reward)
    assert len(run.metrics) == 1


def test_a_run_can_be_in_a_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(_finetune, tmp_path / "run").result()
    assert len(run.metrics) == 1


def test_files_and_own_held_out_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in (("numbers", ROWS[:10]), ("others", ROWS[10:])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = gl.finetune(
        "starter-causal",
        right,
        "numbers.jsonl",
        eval_dataset="others.jsonl",
        steps=8,
        overrides=SMALL,
        algorithm="ppo",
    )
    assert run.folder == Path("runs/numbers-ppo-seed1")
    played = run.evaluate(episodes=9).played["trained"].episodes
    assert {one.record.sample.prompt for one in played} <= {row["prompt"] for row in ROWS[10:]}


def test_a_model_object_is_saved_with_the_run(tmp_path: Path) -> None:
    path = STARTERS["starter-causal"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    tokenizer.pad_token = None
    before = model.lm_head.weight.clone()
    run = _finetune(tmp_path / "run", model=model, processing_class=tokenizer)
    assert before.equal(model.lm_head.weight)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model") is not None
    assert isinstance(run.agent().act("1 2"), str)
    again = _finetune(tmp_path / "run", model=model)  # uses the tokenizer of the original model
    assert again.metrics == run.metrics
    model.config._name_or_path = model.name_or_path = ""
    with pytest.raises(gl.ConfigError, match="the model has no tokenizer: pass processing_class=tokenizer"):
        _finetune(tmp_path / "other", model=model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_dataset": []}, "train_dataset is empty: pass at least one prompt"),
        ({"train_dataset": {"train": ROWS}}, r"has keys train: pass one split, as in train_dataset=data\['train'\]"),
        ({"train_dataset": 3}, "must be a file, a list of prompts, a list of dicts or a datasets.Dataset, got int"),
        ({"train_dataset": ["1 2", 3]}, "row 1 of train_dataset must be a prompt or a dict of columns, got 3"),
        ({"train_dataset": [{"question": "?"}]}, "unknown column 'prompt': .*world.args.prompt_column=question"),
        ({"train_dataset": [{"prompt": "?", "image": object()}]}, "row 0 .* cannot be saved as JSON"),
        ({"train_dataset": "nowhere.jsonl"}, "there is no file nowhere.jsonl: pass the prompts"),
        ({"train_dataset": "some/dataset"}, r"some/dataset is not a file of prompts: expected \*\.jsonl, "),
        ({"reward_funcs": "polit"}, "unknown reward 'polit'"),
        ({"reward_funcs": [3]}, "a reward must be a function of completions or a reward's id, got 3"),
        ({"reward_funcs": []}, "reward_funcs is empty: pass a function of completions"),
        ({"reward_weights": [1, 2]}, "reward_weights must have one number for each reward, got 2 for 1"),
        ({"reward_funcs": [{}]}, "a reward must be a function of completions or a reward's id, got {}"),
        ({"reward_weights": ["much"]}, r"reward_weights must be a list of numbers, got \['much'\]"),
        ({"reward_weights": 2.0}, r"reward_weights must be a list of numbers, got 2\.0"),
        ({"reward_funcs": [digits, digits]}, "the reward digits is given twice: pass it once, with the sum"),
        ({"reward_funcs": [Polite(), Polite()]}, "the reward Polite is given twice"),
        ({"train_dataset": ["1 \ud800"]}, r"row 0 of the data has a character that UTF-8 cannot encode \('\\ud800'"),
        ({"reward_funcs": len}, r"the reward len\(obj.*\) must accept completions"),
        ({"model": 3}, "model must be a folder, a hub id or a Transformers model, got a int"),
        ({"reward_funcs": lambda completions: None}, "must return one number for each sample, got None"),
        ({"reward_funcs": lambda completions: [1.0]}, "wrong number of rewards: expected ., got 1"),
        (
            {"reward_funcs": lambda completions, price: [1.0]},
            "expects 'price', but the data has the columns prompt, ans",
        ),
        ({"reward_funcs": lambda completions: 1 / 0}, "raised ZeroDivisionError"),
        ({"algorithm": "dpo"}, "learns from preferences instead of rewards: use groundling.train"),
        ({"overrides": "seed=1"}, "overrides must be a list of strings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "model": "starter-causal",
        "reward_funcs": digits,
        "train_dataset": ROWS,
        "overrides": SMALL,
    }
    with pytest.raises(gl.GroundlingError, match=message) as error:
        gl.finetune(**{**given, **changes}, steps=8, run_dir=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_command_line_trains_on_a_file_with_a_function_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("my.py").write_text("def polite(completions, answer):\n    return [float(len(a)) for a in answer]\n")
    command = ["train", "writing", "--prompts", "asked.jsonl", "--reward", "my.py:polite", "training.steps=8", *SMALL]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "asked: 16 samples for training, 2 held out for" in printed
    assert "groundling evaluate runs/asked-polite-grpo-seed1 --import my.py:polite" in printed
    folder = Path("runs/asked-polite-grpo-seed1")
    rows = read_metrics(folder)
    assert main(command) == 0 and read_metrics(folder) == rows
    Path("asked.jsonl").write_text("".join(json.dumps(row | {"answer": "new"}) + "\n" for row in ROWS))
    Path("my.py").write_text("def polite(completions, answer):\n    return [0.0 for a in answer]\n")
    with (
        pytest.warns(match="the 16 samples or their order have"),
        pytest.warns(match="^my.py:polite has changed since"),
    ):
        assert main([*command, "training.steps=16"]) == 0
    assert main(["evaluate", str(folder), "--import", "my.py:polite"]) == 0
    _forget("polite", monkeypatch)
    error = error_of(["evaluate", str(folder)], capsys)
    assert "unknown reward 'polite'" in error and "add --import my.py:polite" in error
    assert main(["evaluate", str(folder), "~reward.polite"]) == 0


def _forget(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unregister a function, as in a new process."""
    monkeypatch.delitem(rewards._factories, id)
    monkeypatch.delitem(rewards._origins, id)
    monkeypatch.setattr("groundling.registry.imported_modules", [])


def test_a_file_without_a_function_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "writing", "--reward", "my.py"])
    assert "--reward my.py is a file: name a function in it, as in my.py:FUNCTION" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_prompts_can_be_preferences(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{number}:", "chosen": "red", "rejected": "blue"} for number in range(20)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["train", algorithm, "--prompts", "pairs.jsonl", "training.epochs=1", "run_dir=run"]) == 0
    assert "pairs: 16 samples for training, 2 held out for" in capsys.readouterr().out


def test_a_prompt_held_out_twice_is_reported(tmp_path: Path) -> None:
    Path(tmp_path / "few.txt").write_text("a b\nc d\ne\n")
    described = WritingConfig(pool="lines", args={"path": str(tmp_path / "few.txt")}).read_prompts()
    assert (
        described == "few: 2 samples for training, 1 held out for validation and 1 for evaluation (the same prompts)"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reward", "my.py:polit"], "unknown function 'polit': did you mean 'polite'?"),
        (["--reward", "nowhere.py:f"], "--import nowhere.py:f: FileNotFoundError"),
        (["--reward", "broken.py:f"], "--import broken.py:f: ZeroDivisionError"),
        (["--prompts", "asked.doc"], "asked.doc is not a file of prompts"),
        (["--reward", "my.py:polite"], "there is no file prompts.jsonl: pass the prompts with --prompts FILE"),
        (["--prompts", "asked.txt"], "has no reward: "),
    ],
)
def test_mistakes_on_the_command_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asked.txt").write_text("1 2\n")
    Path("my.py").write_text("def polite(completions):\n    return [1.0 for _ in completions]\n")
    Path("broken.py").write_text("1 / 0\n")
    assert message in error_of(["train", "writing", *words, "training.steps=8", *SMALL], capsys)
    assert not Path("runs").exists()


def test_completions_are_learned_by_supervision(tmp_path: Path) -> None:
    rows = [{"prompt": row["prompt"], "completion": f" {row['answer']}"} for row in ROWS]
    overrides = ["world.texts_per_prompt=1"]
    run = _finetune(tmp_path / "run", *overrides, train_dataset=rows, algorithm="supervised", reward_funcs=digits)
    assert "loss" in read_metrics(run.folder)[-1] and "reward" in run.evaluate(episodes=2).figures["trained"]
