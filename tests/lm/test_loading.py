"""From folders to models and back, and every way to fail, told in one line."""

import builtins
import importlib.util
import json
import re

import pytest
import torch
from peft.tuners import lora
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.load.adapters import merge_adapters
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
def test_weights_lie_where_pytorch_puts_them(lms, tmp_path, init, lora):
    """Else a run that is resumed rounds otherwise: MKL's products depend on addresses."""
    lms("gpt2").save_pretrained(tmp_path / "model")
    lm = LanguageModel.from_pretrained(tmp_path / "model", init=init, lora=lora)
    lm.save_pretrained(tmp_path / "saved")
    for one in (lm, LanguageModel.from_pretrained(tmp_path / "saved")):
        # Frozen ones of a model that is loaded again from where it was may lie anywhere.
        weights = [p for p in one.model.parameters() if p.requires_grad or init == "random"]
        assert {p.data_ptr() % 64 for p in weights} == {0}


def test_random_weights_are_reproducible_and_leave_the_global_generator_alone(folder):
    before = torch.random.get_rng_state()
    first, second, other = (LanguageModel.from_pretrained(folder, init="random", seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(scores(first), scores(second))
    assert not torch.equal(scores(first), scores(other))
    assert not torch.equal(scores(first), scores(LanguageModel.from_pretrained(folder)))


def test_random_weights_need_the_config_alone(folder):
    (folder / "model.safetensors").unlink()
    LanguageModel.from_pretrained(folder, init="random")


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


# LoRA


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama"])
def test_lora_trains_adapters_alone_and_starts_from_the_model_itself(lms, family, tmp_path):
    lms(family).save_pretrained(tmp_path)
    lm = LanguageModel.from_pretrained(tmp_path, lora=LORA)
    assert torch.equal(scores(lm), scores(lms(family)))
    trainable = {name for name, parameter in lm.named_parameters() if parameter.requires_grad}
    assert trainable
    assert all(".lora_" in name for name in trainable)
    sum(row.sum() for row in lm.score(PROMPTS, ACTIONS)).backward()
    assert all(p.grad is None for name, p in lm.named_parameters() if name not in trainable)


def trained_lora(path, lora=LORA, **options):
    lm = LanguageModel.from_pretrained(path, lora=lora, **options)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.1)
    return lm


def test_a_saved_adapter_gives_the_same_model_back(folder, tmp_path):
    lm = trained_lora(folder)
    lm.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "base").exists()
    assert not torch.equal(scores(lm), scores(LanguageModel.from_pretrained(folder)))
    for settings in (None, LORA):
        loaded = LanguageModel.from_pretrained(tmp_path / "adapter", lora=settings)
        assert torch.equal(scores(loaded), scores(lm))
        assert {n for n, p in loaded.named_parameters() if p.requires_grad} == {
            n for n, p in lm.named_parameters() if p.requires_grad
        }
    with pytest.raises(GroundlingError, match="made with r=4, not 8"):
        LanguageModel.from_pretrained(tmp_path / "adapter", lora={"r": 8})
    auto = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.equal(scores(LanguageModel(auto, lm.tokenizer)), scores(lm))


def test_the_magnitudes_of_dora_come_back(folder, tmp_path):
    lm = trained_lora(folder, lora={**LORA, "use_dora": True})
    lm.save_pretrained(tmp_path)
    assert torch.equal(scores(LanguageModel.from_pretrained(tmp_path)), scores(lm))


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama"])
def test_merged_adapters_score_the_same_by_plain_layers(lms, family, tmp_path):
    lms(family).save_pretrained(tmp_path)
    lm = trained_lora(tmp_path, {**LORA, "target_modules": "all-linear"})
    before = scores(lm)
    assert (before - scores(lms(family))).abs().max() > 1e-2
    merge_adapters(lm)
    layers = [module for module in lm.modules() if isinstance(module, lora.Linear)]
    assert layers and all(layer.merged for layer in layers)
    torch.testing.assert_close(scores(lm), before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"lora": {**LORA, "target_modules": ["lm_head"]}},  # whose weights are the embedding's
        {"lora": LORA, "dtype": "bfloat16"},
        {"lora": {**LORA, "lora_bias": True}, "family": "llama"},  # whose layers have none
    ],
)
@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings")
def test_adapters_that_cannot_be_merged_stay_beside_their_layers(lms, options, tmp_path):
    lms(options.pop("family", "gpt2")).save_pretrained(tmp_path)
    lm = trained_lora(tmp_path, **options)
    weights = {name: p.clone() for name, p in lm.named_parameters()}
    merge_adapters(lm)
    assert all(torch.equal(p, weights[name]) for name, p in lm.named_parameters())
    assert not any(m.merged for m in lm.modules() if isinstance(m, lora.Linear))


def test_an_orthogonal_adapter_leaves_the_model_as_a_reference(folder, tmp_path):
    lm = LanguageModel.from_pretrained(folder, lora={**LORA, "init_lora_weights": "orthogonal"})
    base = LanguageModel.from_pretrained(folder).model.state_dict()
    kept = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in lm.model.state_dict().items()
        if ".lora_" not in name
    }
    assert kept.keys() == base.keys() and all(torch.equal(kept[name], base[name]) for name in base)
    lm.save_pretrained(tmp_path)
    assert torch.equal(scores(LanguageModel.from_pretrained(tmp_path)), scores(lm))


def test_an_adapter_that_is_loaded_and_saved_again_names_the_same_base(tmp_path):
    """A run that was resumed ends with the files of one that was not."""
    LanguageModel.from_pretrained("starter-causal", lora={"r": 4}).save_pretrained(tmp_path / "once")
    LanguageModel.from_pretrained(tmp_path / "once").save_pretrained(tmp_path / "again")
    once, again = (tmp_path / name / "adapter_config.json" for name in ("once", "again"))
    assert once.read_text() == again.read_text()
    assert (tmp_path / "again" / "base").exists()
    for name in ("x" * 5000, "", "/tmp"):  # no folder of a model
        file = tmp_path / "once" / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(once.read_text()), "base_model_name_or_path": name}))
        loaded = LanguageModel.from_pretrained(tmp_path / "once")
        assert loaded.model.peft_config["default"].base_model_name_or_path == str(tmp_path / "once" / "base")


@pytest.mark.parametrize("base", [None, 5, "", ["starter"]])
def test_an_adapter_that_names_no_model_is_told(folder, tmp_path, base):
    trained_lora(folder).save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
    message = rf"adapter_config.json does not say .*base_model_name_or_path is {re.escape(json.dumps(base))}\)"
    with pytest.raises(GroundlingError, match=message):
        LanguageModel.from_pretrained(tmp_path)


def test_an_adapter_of_all_linear_layers_is_loaded_by_the_settings_that_made_it(folder, tmp_path):
    settings = {"r": 4, "target_modules": "all-linear"}
    lm = LanguageModel.from_pretrained(folder, lora=settings)
    lm.save_pretrained(tmp_path / "adapter")
    loaded = LanguageModel.from_pretrained(tmp_path / "adapter", lora=settings)
    assert torch.equal(scores(loaded), scores(lm))
    with pytest.raises(GroundlingError, match="made with r=4, not 8"):
        LanguageModel.from_pretrained(tmp_path / "adapter", lora=settings | {"r": 8})


def test_an_adapter_that_acts_after_some_tokens_alone_is_refused(folder, tmp_path):
    trained_lora(folder).save_pretrained(tmp_path / "adapter")
    saved = tmp_path / "adapter" / "adapter_config.json"
    settings = json.loads(saved.read_text())
    saved.write_text(json.dumps(settings | {"alora_invocation_tokens": [5]}))
    with pytest.raises(GroundlingError, match="acts after some tokens alone"):
        LanguageModel.from_pretrained(tmp_path / "adapter")


def test_an_adapter_on_random_weights_is_saved_with_them(folder, tmp_path):
    lm = trained_lora(folder, init="random", seed=5)
    lm.save_pretrained(tmp_path / "once")
    loaded = LanguageModel.from_pretrained(tmp_path / "once")
    assert torch.equal(scores(loaded), scores(lm))
    loaded.save_pretrained(tmp_path / "twice")
    (tmp_path / "once").rename(tmp_path / "elsewhere")
    assert torch.equal(scores(LanguageModel.from_pretrained(tmp_path / "twice")), scores(lm))


def test_modules_beside_an_adapter_on_random_weights_are_saved_with_them(folder, tmp_path):
    lm = LanguageModel.from_pretrained(folder, init="random", seed=5, lora={**LORA, "modules_to_save": ["lm_head"]})
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    lm.save_pretrained(tmp_path / "once")
    assert torch.equal(scores(LanguageModel.from_pretrained(tmp_path / "once")), scores(lm))


def test_lora_with_gradient_checkpointing(folder):
    plain, checkpointed = (trained_lora(folder, gradient_checkpointing=on) for on in (False, True))
    checkpointed.load_state_dict(plain.state_dict())
    for lm in (plain, checkpointed):
        sum(row.sum() for row in lm.score(PROMPTS, ACTIONS)).backward()
    for (name, ours), theirs in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


def test_four_bit_weights_score_like_the_whole_ones_and_train_an_adapter(tmp_path):
    pytest.importorskip("bitsandbytes")
    whole = LanguageModel.from_pretrained("starter")
    lm = LanguageModel.from_pretrained("starter", load_in_4bit=True, lora={"r": 2, "target_modules": ["q", "v"]})
    linear = [m for m in lm.model.modules() if type(m).__name__ == "Linear4bit"]
    assert linear and all(m.weight.dtype == torch.uint8 for m in linear)
    assert (scores(lm) - scores(whole)).abs().mean() < 0.5  # nats; their spread is several
    sum(row.sum() for row in lm.score(PROMPTS, ACTIONS)).backward()
    trained = [p for p in lm.parameters() if p.requires_grad]
    assert trained and all(p.grad is not None for p in trained)
    with torch.no_grad():
        for p in trained:
            p.add_(0.01)
    lm.save_pretrained(tmp_path)
    again = LanguageModel.from_pretrained(tmp_path, load_in_4bit=True)
    torch.testing.assert_close(scores(again), scores(lm))


def test_a_device_map_places_the_layers(folder):
    lm = LanguageModel.from_pretrained(folder, device_map={"": "cpu"})
    assert torch.equal(scores(lm), scores(LanguageModel.from_pretrained(folder)))
    with pytest.raises(GroundlingError, match="device_map"):
        LanguageModel.from_pretrained(folder, device_map="auto", init="random")


# Failures


def one_line(error):
    assert "\n" not in str(error.value)
    return True


def test_a_bias_of_positions_learns_by_plain_attention():
    eager, fused = (LanguageModel.from_pretrained("starter", attention=name) for name in (None, "sdpa"))
    assert eager.model.config._attn_implementation == "eager"
    scores = [lm.score(["go to the red ball"], ["left", "go forward"])[0] for lm in (eager, fused)]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=0)
    for score in scores:
        score.sum().backward()
    for one, other in zip(eager.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-3)
    assert LanguageModel.from_pretrained("starter-causal").model.config._attn_implementation == "sdpa"


def test_no_such_folder(tmp_path):
    for path in (tmp_path / "nowhere", "./nowhere", "a/b/c"):
        with pytest.raises(GroundlingError, match=r"no model folder at .*(nowhere|a/b/c)") as error:
            LanguageModel.from_pretrained(path)
        assert one_line(error)


def test_no_such_hub_model(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(GroundlingError, match="no model 'nobody/nothing'") as error:
        LanguageModel.from_pretrained("nobody/nothing")
    assert one_line(error)


def test_no_config(tmp_path):
    with pytest.raises(GroundlingError, match=r"no config\.json") as error:
        LanguageModel.from_pretrained(tmp_path)
    assert one_line(error)


@pytest.mark.parametrize("content", ["{", '{"model_type": "nonsense"}', "{}", "[]"])
def test_a_broken_config(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(GroundlingError, match="config") as error:
        LanguageModel.from_pretrained(folder)
    assert one_line(error)


def test_no_tokenizer(folder):
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(GroundlingError, match="no tokenizer") as error:
        LanguageModel.from_pretrained(folder)
    assert one_line(error)


def test_a_broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(GroundlingError, match="tokenizer") as error:
        LanguageModel.from_pretrained(folder)
    assert one_line(error)


def test_another_models_tokenizer(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    lm = LanguageModel.from_pretrained(folder, init="random")
    with pytest.raises(GroundlingError, match="the tokenizer is not this model's") as error:
        lm.score(PROMPTS, ACTIONS)
    assert one_line(error)


def test_truncated_missing_and_incomplete_weights(folder):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(GroundlingError, match="cannot be loaded") as error:
        LanguageModel.from_pretrained(folder)
    assert one_line(error)
    weights.unlink()
    with pytest.raises(GroundlingError, match="cannot be loaded") as error:
        LanguageModel.from_pretrained(folder)
    assert one_line(error)
    from safetensors.torch import load, save_file

    state = load(content)
    del state["transformer.h.1.mlp.c_fc.weight"]
    save_file(state, weights, metadata={"format": "pt"})
    with pytest.raises(GroundlingError, match=r"lacks weights .*h\.1\.mlp\.c_fc\.weight") as error:
        LanguageModel.from_pretrained(folder)
    assert one_line(error)


def test_wrong_options(folder):
    for options, message in (
        ({"device": "cuda"}, "cannot be used on this machine"),
        ({"device": "tpu9"}, "device=tpu9"),
        ({"dtype": "float8"}, "unknown dtype"),
        ({"init": "zeros"}, "unknown init"),
        ({"lora": {"r": 4, "rank": 3}}, "LoRA settings"),
        ({"lora": {"r": 4, "lora_dropout": 0.1}}, "lora_dropout must be 0"),
        ({"lora": {"r": 4, "init_lora_weights": "pissa"}}, "init_lora_weights=pissa cannot be used"),
        ({"lora": {"r": 4, "trainable_token_indices": [5]}}, r"indices=\[5\] cannot be used: .*modules_to_save"),
        ({"lora": {"r": 4, "bias": "all"}}, "bias=all cannot be used"),
        ({"lora": {"r": 4, "alora_invocation_tokens": [5]}}, r"alora_invocation_tokens=\[5\] cannot be used"),
        ({"lora": {"r": 4, "target_modules": ["nonsense"]}}, "LoRA settings"),
        ({"attention": "nonsense"}, "cannot be loaded"),
    ):
        if message == "cannot be used on this machine" and torch.cuda.is_available():
            continue
        with pytest.raises(GroundlingError, match=message) as error:
            LanguageModel.from_pretrained(folder, **options)
        assert one_line(error)


def test_lora_without_peft(folder, monkeypatch):
    real_import = builtins.__import__

    def no_peft(name, *args, **kwargs):
        if name == "peft":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_peft)
    with pytest.raises(GroundlingError, match=r"groundling\[lora\]"):
        LanguageModel.from_pretrained(folder, lora=LORA)


def test_a_sentencepiece_file_is_named_as_what_it_is(tmp_path, monkeypatch):
    """GLAM's DRRN reads such a file (spm_path): it is a tokenizer to convert, and no missing model."""
    file = tmp_path / "unigram_8k.model"
    file.write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    convert = "is a SentencePiece model file.*that of the model.*spiece.model.*pip install sentencepiece.*T5Tokenizer"
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
