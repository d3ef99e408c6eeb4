"""Files that could exhaust memory, the stack or time are rejected immediately, with one line."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from groundling.cli.main import main
from groundling.io import documents
from groundling.io.documents import DocumentError

_ALIASES = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)
_INTERPOLATIONS = "a0: xxxxxxxxxx\n" + "".join(f"a{i}: {f'${{a{i - 1}}}' * 10}\n" for i in range(1, 10))
YAML = {
    "aliases": (_ALIASES, "aliases"),
    "aliases of a long text": ("a: &a " + "x" * 1000 + "\nb: [" + "*a," * 2000 + "]", "1,048,576 characters"),
    "deep flow": ("a: " + "[" * 100_000, "nested deeper than 32"),
    "deep block": ("\n".join(" " * i + "a:" for i in range(900)), "nested deeper than 32"),
    "deep by aliases": (
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 40)),
        "nested deeper than 32",
    ),
    "within itself": ("a: &a [*a]", "inside the value that it refers to"),
    "many": ("a: [" + "1," * 20_000 + "]", "values"),
    "long": ("a: " + "x" * 2**20, "bytes"),
    "twice": ("a: 1\na: 2", "duplicate key a"),
    "list": ("- a", "a list"),
    "one value": ("'a: [1]'", "one value: expected"),
    "two documents": ("a: 1\n---\nb: 2", "a single document"),
    "cut off": ("a: [", "not YAML"),
    "code": ("a: !!python/object/apply:os.system [ls]", "not YAML"),
    "great number": ("a: [{b: 0x" + "f" * 400 + "}]", "a.0.b must be less than 2**63, got a number with 1600 bits"),
    "great negative number": ("a: -0b1" + "0" * 63, "a must be less than 2**63"),
    "great key": ("a: {? 0x" + "f" * 400 + " : 1}", "a.(a key) must be less than 2**63"),
    "long number": ("a: " + "9" * 5000, "number with more than 4,300 characters, '99999"),
    "long number in base 60": ("a: -1" + ":1" * 500_000, "number with more than 4,300 characters, '-1:1:1"),
    "long key in base 60": ("? 1" + ":1" * 500_000 + "\n: a", "number with more than 4,300 characters"),
    "long number by its tag": ("a: !!int '1" + ":1" * 500_000 + "'", "number with more than 4,300 characters"),
    "long number after a tag": ("a: ! 1" + ":1" * 150_000, "number with more than 4,300 characters, '1:1:1"),
    "long number in quotes after a tag": ("a: ! '1" + ":1" * 150_000 + "'", "more than 4,300 characters"),
    "long number in a block after a tag": ("a: ! |\n 1" + ":1" * 150_000 + "\n", "more than 4,300 characters"),
    "no text": ("a: \x00", "not YAML"),
}
JSON = {
    "deep": ("[" * 100_000, "nested deeper than 32"),
    "closed": ("[" * 33 + "]" * 33, "nested deeper than 32"),
    "objects": ('{"a":' * 5000 + "1" + "}" * 5000, "nested deeper than 32"),
    "twice": ('{"a": 1, "a": 2}', "the key 'a' is duplicated"),
    "twice among many": ("{" + ",".join(f'"{i}":1' for i in range(50_000)) + ',"49999":1}', "'49999' is duplicated"),
    "empty": ("", "not JSON"),
    "long number": ("9" * 5000, "4300 digits"),
    "many": ("[" + "0," * 2**23 + "0]", "values"),
}


def _refusal(read: Callable[[Path], Any], path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    began = time.process_time()
    with pytest.raises(DocumentError) as caught:
        read(path)
    assert time.process_time() - began < 1
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500 and str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", YAML)
def test_yaml_is_refused(name: str, tmp_path: Path) -> None:
    text, reason = YAML[name]
    assert reason in _refusal(documents.read_yaml, tmp_path / "config.yaml", text)


@pytest.mark.parametrize("name", JSON)
def test_json_is_refused(name: str, tmp_path: Path) -> None:
    text, reason = JSON[name]
    assert reason in _refusal(documents.read_json, tmp_path / "a.json", text)


def test_ordinary_yaml_is_read_as_by_omegaconf(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = "\ufeffx: &x {lr: 1e-3, off_: no}\ny: [*x, {<<: *x, lr: 2}, .nan]\n"
    text += f"texts: ['{'1 2 ' * 5000}', {'one 2 ' * 5000}, 1:30]\n"
    text += f"prose: 1. You are in a room. {'Say a word. ' * 1000}\nlist: -You {'may go. ' * 1000}\n"
    path.write_text(text, encoding="utf-8")
    read = documents.read_yaml(path)
    assert str(read) == str(OmegaConf.load(path))
    assert read.y[1] == {"lr": 2, "off_": False} and read.x.lr == 1e-3
    path.write_text("# nothing\n", encoding="utf-8")
    assert documents.read_yaml(path) == {}


@pytest.mark.parametrize(
    "read", [documents.read_yaml, documents.read_card, documents.read_json, documents.read_parquet]
)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_pipes_and_folders_are_refused(read: Callable[[Path], Any], kind: str, tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    link.symlink_to(path)
    for name in (path, link):
        for reader in (read, lambda path: list(documents.read_lines(path))):
            with pytest.raises(DocumentError, match=f"^{name} is not a regular file: replace it with a file"):
                reader(name)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a: 1")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert documents.read_yaml(tmp_path / "link") == {"a": 1}


@pytest.mark.parametrize("key", ["a: ", "? ", "!!set {1, ? "])
def test_a_card_with_a_huge_number_is_refused(key: str, tmp_path: Path) -> None:
    number, end = "0x" + "F" * 4200, "}" if "{" in key else ""
    text = f"---\nconfigs:\n- {key}{number}{end}\n---\n"
    assert "must be less than 2**63" in _refusal(documents.read_card, tmp_path / "README.md", text)


def test_a_json_root_of_another_type_is_named(tmp_path: Path) -> None:
    assert "contains null: expected an object" in _refusal(documents.read_object, tmp_path / "a.json", "null")


def test_lines_are_limited_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LINE", 100)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n' * 1000 + "[NaN]", encoding="utf-8")
    lines = list(documents.read_lines(path))
    assert len(lines) == 1001 and lines[0] == (f"{path}:1", {"a": 1})
    path.write_text('{"a": 1}\n"' + "x" * 100 + '"\n', encoding="utf-8")
    with pytest.raises(DocumentError, match=":2 exceeds 100 bytes"):
        list(documents.read_lines(path))


def test_replaced_names_stay_small(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="expands to over"):
        documents.resolve(dict(line.split(": ") for line in _INTERPOLATIONS.splitlines()), "config.yaml")
    with pytest.raises(DocumentError, match="too deep"):
        documents.resolve({f"a{i}": f"${{a{i + 1}}}" for i in range(1000)}, "config.yaml")
    values = {"a": {"b": "${.c}", "c": "${..d}/${e[0]}"}, "d": "x", "e": [1], "f": "${a}"}
    found = {"b": "x/1", "c": "x/1"}
    assert documents.resolve(values, "config.yaml") == {"a": found, "d": "x", "e": [1], "f": found}


@pytest.mark.parametrize(
    "text",
    [_ALIASES, "a: " + "[" * 5000, "- a", "world: {id: text}\nname: '${a9}'\n" + _INTERPOLATIONS],
    ids=["aliases", "deep", "list", "interpolations"],
)
@pytest.mark.parametrize(
    "words",
    [
        ["train", "PATH"],
        ["train", "mine", "--config-dir", "FOLDER"],
        ["convert", "PATH"],
        ["study", "PATH", "--output", "FOLDER/out"],
        ["report", "FOLDER"],
        ["evaluate", "FOLDER"],
    ],
    ids=lambda words: " ".join(words),
)
def test_every_command_refuses_oversized_yaml(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    (tmp_path / "experiment").mkdir()
    for place in (path, tmp_path / "experiment" / "mine.yaml"):
        place.write_text(text, encoding="utf-8")
    began = time.process_time()
    assert main([word.replace("PATH", str(path)).replace("FOLDER", str(tmp_path)) for word in words]) == 1
    assert time.process_time() - began < 5  # including imports
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and len(error) < 1000
