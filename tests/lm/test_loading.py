"""Loading models from folders, saving them again, and one-line messages for all failures."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.policies.policy import policies
from tests.lm.families import ACTIONS
from tests.thorough import thorough

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot read several candidates")
LORA = {"r": 4, "lora_alpha": 8}
PROMPTS = ["You see a red ball", "go to"]


def scores(lm):
    with torch.no_grad():
        return torch.stack(lm.score(PROMPTS, ACTIONS))


@pytest.fixture
def folder(lms, tmp_path):
    lms("gpt2").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("family", ["t5", "llama", *thorough("flan-t5", "bart", "gpt2", "qwen3", "opt")])
def test_saved_and_loaded_is_the_same_model(lms, family, tmp_path):
    lm = lms(family)
    lm.save_pretrained(tmp_path)
    loaded = LanguageModel.from_pretrained(tmp_path)
    assert loaded.is_encoder_decoder == lm.is_encoder_decoder
    assert torch.equal(scores(loaded), scores(lm))
    for name, tensor in lm.model.state_dict().items():
        assert torch.equal(tensor, loaded.model.state_dict()[name]), name
    auto = AutoModelForSeq2SeqLM if lm.is_encoder_decoder else AutoModelForCausalLM
    again = LanguageModel(auto.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path))
    torch.testing.assert_close(scores(again), scores(lm), atol=1e-5, rtol=1e-5)  # with fused attention
    assert not list(tmp_path.glob("*.bin"))


@pytest.mark.parametrize("init", ["pretrained", "random"])
@pytest.mark.parametrize("lora", [None, LORA])
def test_weights_are_aligned_as_pytorch_aligns_them(lms, tmp_path, init, lora):
    """The rounding of MKL's products depends on addresses, and a resumed run must compute the same."""
    lms("gpt2").save_pretrained(tmp_path / "model")
    lm = LanguageModel.from_pretrained(tmp_path / "model", init=init, lora=lora)
    lm.save_pretrained(tmp_path / "saved")
    for one in (lm, LanguageModel.from_pretrained(tmp_path / "saved")):
        # Frozen weights that are loaded again from their own file may have any alignment.
        weights = [p for p in one.model.parameters() if p.requires_grad or init == "random"]
        assert {p.data_ptr() % 64 for p in weights} == {0}


def test_random_weights_are_reproducible_and_leave_the_global_generator_alone(folder):
    before = torch.random.get_rng_state()
    first, second, other = (LanguageModel.from_pretrained(folder, init="random", seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(scores(first), scores(second))
    assert not torch.equal(scores(first), scores(other))
    assert not torch.equal(scores(first), scores(LanguageModel.from_pretrained(folder)))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_embeddings_can_be_kept(lms, family, tmp_path):
    lms(family).save_pretrained(tmp_path)
    pretrained = LanguageModel.from_pretrained(tmp_path).model
    kept = LanguageModel.from_pretrained(tmp_path, init="embeddings", seed=0).model
    random = LanguageModel.from_pretrained(tmp_path, init="random", seed=0).model
    assert torch.equal(kept.get_input_embeddings().weight, pretrained.get_input_embeddings().weight)
    assert torch.equal(kept.get_output_embeddings().weight, pretrained.get_output_embeddings().weight)
    embedding = kept.get_input_embeddings().weight.data_ptr()
    for name, tensor in kept.state_dict().items():
        if tensor.data_ptr() != embedding:
            assert torch.equal(tensor, random.state_dict()[name]), name


def test_dtype(folder):
    lm = LanguageModel.from_pretrained(folder, dtype="bfloat16")
    assert lm.model.dtype == torch.bfloat16
    assert scores(lm).dtype == torch.float32


def test_t5s_position_bias_is_trained_by_plain_attention():
    eager, fused = (LanguageModel.from_pretrained("starter", attention=name) for name in (None, "sdpa"))
    assert eager.model.config._attn_implementation == "eager"
    scores = [lm.score(["go to the red ball"], ["left", "go forward"])[0] for lm in (eager, fused)]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=0)
    for score in scores:
        score.sum().backward()
    for one, other in zip(eager.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-3)
    assert LanguageModel.from_pretrained("starter-causal").model.config._attn_implementation == "sdpa"


# Failures


def refused(message, path, **options):
    with pytest.raises(GroundlingError, match=message) as error:
        LanguageModel.from_pretrained(path, **options)
    assert "\n" not in str(error.value)


def test_missing_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "nowhere", "./nowhere", "a/b/c"):
        refused(r"no model folder at .*(nowhere|a/b/c)", path)
    refused(r"no config\.json", tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("no model 'nobody/nothing'", "nobody/nothing")


@pytest.mark.parametrize("content", ["{", '{"model_type": "nonsense"}', "{}", "[]"])
def test_a_broken_config(folder, content):
    (folder / "config.json").write_text(content)
    refused("config", folder)


def test_broken_missing_and_foreign_tokenizers(folder):
    (folder / "tokenizer.json").write_text("{")
    refused("tokenizer", folder)
    for path in folder.glob("*token*"):
        path.unlink()
    refused("no tokenizer: .* processing_class=", folder)


def test_another_models_tokenizer(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    refused(r"the tokenizer has \d+ tokens, but the model has only 100", folder, init="random")


def test_truncated_missing_and_incomplete_weights(folder):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    refused("cannot be loaded", folder)
    weights.unlink()
    refused("cannot be loaded", folder)
    state = load(content)
    del state["transformer.h.1.mlp.c_fc.weight"]
    save_file(state, weights, metadata={"format": "pt"})
    refused(r"lacks some .*h\.1\.mlp\.c_fc\.weight", folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu9"}, "device=tpu9"),
        ({"dtype": "float8"}, "unknown dtype"),
        ({"init": "zeros"}, "unknown init"),
        ({"attention": "nonsense"}, "cannot be loaded"),
        ({"device_map": "auto", "init": "random"}, "device_map"),
        ({"lora": {"r": 4, "rank": 3}}, "LoRA settings"),
        ({"lora": {"r": 4, "lora_dropout": 0.1}}, "lora_dropout=0.1 cannot be used"),
        ({"lora": {"r": 4, "init_lora_weights": "pissa"}}, "init_lora_weights=pissa cannot be used"),
        ({"lora": {"r": 4, "trainable_token_indices": [5]}}, r"indices=\[5\] cannot .*modules_to_save"),
        ({"lora": {"r": 4, "bias": "all"}}, "bias=all cannot be used"),
        ({"lora": {"r": 4, "alora_invocation_tokens": [5]}}, r"alora_invocation_tokens=\[5\] cannot be used"),
        ({"lora": {"r": 4, "target_modules": ["nonsense"]}}, "LoRA settings"),
    ],
)
def test_invalid_options(folder, options, message):
    refused(message, folder, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu(folder):
    refused("is not available on this machine", folder, device="cuda")


def test_a_sentencepiece_file_is_named_as_what_it_is(tmp_path, monkeypatch):
    """GLAM's DRRN reads such a file (spm_path), which is a tokenizer to convert, not a missing model."""
    file = tmp_path / "unigram_8k.model"
    file.write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    convert = "a SentencePiece model file.*its model's folder.*spiece.model.*pip install sentencepiece.*T5Tokenizer"
    with pytest.raises(GroundlingError, match=convert):
        policies.create("drrn", tokenizer=str(file))
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    file.rename(folder / "spiece.model")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "sentencepiece" else find_spec(name, *a)
    )
    with pytest.raises(GroundlingError, match="SentencePiece model file, which needs sentencepiece: pip install"):
        policies.create("drrn", tokenizer=str(folder))
