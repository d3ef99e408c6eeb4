"""A model folder that refers to anything but regular files inside it is refused before any file is opened."""

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from groundling.errors import GroundlingError
from groundling.judges.reward_models import CharacterRewardModel, load_reward_model
from groundling.lm import LanguageModel
from groundling.lm.load.model import load_tokenizer
from groundling.lm.load.model_files import STARTERS, Source
from groundling.metrics.metric import check_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Create a sharded model folder."""
    folder = tmp_path / "model"
    shutil.copytree(STARTERS["starter-causal"], folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({name: weights[name] for name in part}, folder / f"model-{number}.safetensors", {"format": "pt"})
    places = {name: f"model-{1 + place % 2}.safetensors" for place, name in enumerate(names)}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _index(to: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"] = dict.fromkeys(index["weight_map"], to)
        path.write_text(json.dumps(index))

    return change


def _strange_index(more: str) -> Callable[[Path], None]:
    """Write an index that `groundling.io.documents` rejects and Transformers reads."""

    def change(folder: Path) -> None:
        text = f'{{"metadata": {{}}, "weight_map": {{"a": "/dev/zero"}}, {more}}}'
        (folder / "model.safetensors.index.json").write_text(text)

    return change


def _entry(name: str, **more: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **more}))

    return change


def _link(name: str, to: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return change


def _pipe(folder: Path) -> None:
    (folder / "model-1.safetensors").unlink()
    os.mkfifo(folder / "model-1.safetensors")


def _socket(folder: Path) -> None:
    os.chdir(folder)  # socket names must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("vocab.txt")


REFUSED = {
    "an index that names a device": _index("/dev/zero"),
    "an index that leads up to a device": _index("../" * 20 + "dev/zero"),
    "an index with a key twice that names a device": _strange_index('"metadata": {}'),
    "an index nested deeply that names a device": _strange_index(f'"x": {"[" * 40}{"]" * 40}'),
    "a tokenizer's settings that name a device by another key": _entry(
        "tokenizer_config.json", source_spm="/dev/zero"
    ),
    "an index that leads outside": _index("../outside.safetensors"),
    "an index that names a folder's link": _index("elsewhere/outside.safetensors"),
    "an index of PyTorch's that leads outside": _entry(
        "pytorch_model.bin.index.json", weight_map={"a": "../outside.safetensors"}
    ),
    "weights that are a device": _link("model-1.safetensors", "/dev/zero"),
    "weights that are outside": _link("model-1.safetensors", "../outside.safetensors"),
    "weights that are a pipe": _pipe,
    "a tokenizer that is a device": _link("tokenizer.json", "/dev/zero"),
    "a tokenizer's settings that name a device": _entry("tokenizer_config.json", vocab_file="/dev/zero"),
    "a tokenizer's settings that name a file outside": _entry(
        "tokenizer_config.json", fast_tokenizer_files=["../outside.safetensors"]
    ),
    "a config that names a file outside": _entry("config.json", transformers_weights="../outside.safetensors"),
    "a config of several that lie outside": _entry("config.json", configuration_files=["../outside.safetensors"]),
    "a chat template that is a device": _link("chat_template.jinja", "/dev/zero"),
    "a generation config that is a device": _link("generation_config.json", "/dev/zero"),
    "a file that is a socket": _socket,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_of_files_elsewhere_is_refused(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # restores the folder, which a case has changed
    (tmp_path / "there").mkdir()
    for place in (tmp_path, tmp_path / "there"):
        shutil.copy(model / "model-1.safetensors", place / "outside.safetensors")
    (model / "elsewhere").symlink_to(tmp_path / "there")
    REFUSED[name](model)
    for load in (
        LanguageModel.from_pretrained,
        lambda path: load_tokenizer(Source(str(path))),
        lambda path: check_model("classifier", str(path)),
    ):
        with pytest.raises(GroundlingError, match=r"outside the folder|not a regular file") as raised:
            load(model)
        assert re.search(r"(contains|names) the file \S+, which", str(raised.value)) and "\n" not in str(raised.value)


def test_an_adapter_and_a_reward_model_are_checked_too(tmp_path: Path) -> None:
    adapter, taste = tmp_path / "adapter", tmp_path / "taste"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "starter-causal"}))
    (adapter / "adapter_model.safetensors").symlink_to("/dev/zero")
    CharacterRewardModel(channels=4, hidden_size=8).save(taste)
    (taste / "reward_model.safetensors").unlink()
    (taste / "reward_model.safetensors").symlink_to("/dev/zero")
    for load, folder in ((LanguageModel.from_pretrained, adapter), (load_reward_model, taste)):
        with pytest.raises(GroundlingError, match=r"contains the file \w+\.safetensors, which lies outside"):
            load(folder)


def test_shards_and_the_hub_caches_links_still_load(model: Path, tmp_path: Path) -> None:
    wanted = LanguageModel.from_pretrained("starter-causal").score(["You see"], ["a ball"])[0]
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in model.iterdir():
        shutil.copy(path, blobs / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    stale = json.loads((model / "tokenizer_config.json").read_text()) | {
        "tokenizer_file": "/gone/tokenizer.json",
        "special_tokens_map_file": "/etc/passwd",  # Transformers wrote it but does not read it
    }
    (model / "tokenizer_config.json").write_text(json.dumps(stale))
    (tmp_path / "link").symlink_to(model)
    for folder in (snapshot, model, tmp_path / "link"):
        score = LanguageModel.from_pretrained(folder).score(["You see"], ["a ball"])[0]
        assert float(score) == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "merges.txt"])
def test_a_file_that_would_fill_the_memory_is_refused(name: str, model: Path) -> None:
    (model / name).touch()
    os.truncate(model / name, 2**40)  # these bytes are not on the disk
    with pytest.raises(GroundlingError, match=rf"{name} has 1,099,511,627,776 bytes"):
        LanguageModel.from_pretrained(model)
