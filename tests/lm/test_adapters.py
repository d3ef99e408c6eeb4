"""LoRA adapters: training, saving, loading, merging and refusals."""

import json
import re

import pytest
import torch
from peft.tuners import lora
from transformers import AutoModelForCausalLM

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.load.adapters import merge_adapters
from tests.lm.families import ACTIONS

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
    with pytest.raises(GroundlingError, match="created with r=4, not 8"):
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
        {"lora": {**LORA, "target_modules": ["lm_head"]}},  # these weights are shared with the embedding
        {"lora": LORA, "dtype": "bfloat16"},
        {"lora": {**LORA, "lora_bias": True}, "family": "llama"},  # these layers have no bias
    ],
)
@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings")
def test_adapters_that_cannot_be_merged_exactly_stay(lms, options, tmp_path):
    lms(options.pop("family", "gpt2")).save_pretrained(tmp_path)
    lm = trained_lora(tmp_path, **options)
    weights = {name: p.clone() for name, p in lm.named_parameters()}
    merge_adapters(lm)
    assert all(torch.equal(p, weights[name]) for name, p in lm.named_parameters())
    assert not any(m.merged for m in lm.modules() if isinstance(m, lora.Linear))


def test_an_adapter_that_is_loaded_and_saved_again_names_the_same_base(tmp_path):
    """A resumed run ends with the same files as an uninterrupted run."""
    LanguageModel.from_pretrained("starter-causal", lora={"r": 4}).save_pretrained(tmp_path / "once")
    LanguageModel.from_pretrained(tmp_path / "once").save_pretrained(tmp_path / "again")
    once, again = (tmp_path / name / "adapter_config.json" for name in ("once", "again"))
    assert once.read_text() == again.read_text()
    assert (tmp_path / "again" / "base").exists()
    for name in ("x" * 5000, "", "/tmp"):  # not a model's folder
        file = tmp_path / "once" / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(once.read_text()), "base_model_name_or_path": name}))
        loaded = LanguageModel.from_pretrained(tmp_path / "once")
        assert loaded.model.peft_config["default"].base_model_name_or_path == str(tmp_path / "once" / "base")


@pytest.mark.parametrize("base", [None, 5, "", ["starter"]])
def test_an_adapter_without_a_base_model_is_refused(folder, tmp_path, base):
    trained_lora(folder).save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
    message = rf"adapter_config.json does not specify .*base_model_name_or_path is {re.escape(json.dumps(base))}\)"
    with pytest.raises(GroundlingError, match=message):
        LanguageModel.from_pretrained(tmp_path)


def test_an_adapter_that_acts_after_some_tokens_alone_is_refused(folder, tmp_path):
    trained_lora(folder).save_pretrained(tmp_path / "adapter")
    saved = tmp_path / "adapter" / "adapter_config.json"
    settings = json.loads(saved.read_text())
    saved.write_text(json.dumps(settings | {"alora_invocation_tokens": [5]}))
    with pytest.raises(GroundlingError, match="active only after certain tokens"):
        LanguageModel.from_pretrained(tmp_path / "adapter")


def test_an_adapter_on_random_weights_is_saved_with_them(folder, tmp_path):
    lm = trained_lora(folder, init="random", seed=5)
    lm.save_pretrained(tmp_path / "once")
    loaded = LanguageModel.from_pretrained(tmp_path / "once")
    assert torch.equal(scores(loaded), scores(lm))
    loaded.save_pretrained(tmp_path / "twice")
    (tmp_path / "once").rename(tmp_path / "elsewhere")
    assert torch.equal(scores(LanguageModel.from_pretrained(tmp_path / "twice")), scores(lm))


def test_trained_modules_next_to_an_adapter_are_saved(folder, tmp_path):
    lm = LanguageModel.from_pretrained(folder, init="random", seed=5, lora={**LORA, "modules_to_save": ["lm_head"]})
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    lm.save_pretrained(tmp_path / "once")
    assert torch.equal(scores(LanguageModel.from_pretrained(tmp_path / "once")), scores(lm))


def test_four_bit_weights_score_like_the_whole_ones_and_train_an_adapter(tmp_path):
    pytest.importorskip("bitsandbytes")
    whole = LanguageModel.from_pretrained("starter")
    lm = LanguageModel.from_pretrained("starter", load_in_4bit=True, lora={"r": 2, "target_modules": ["q", "v"]})
    linear = [m for m in lm.model.modules() if type(m).__name__ == "Linear4bit"]
    assert linear and all(m.weight.dtype == torch.uint8 for m in linear)
    assert (scores(lm) - scores(whole)).abs().mean() < 0.5  # in nats; the spread of scores is several nats
    sum(row.sum() for row in lm.score(PROMPTS, ACTIONS)).backward()
    trained = [p for p in lm.parameters() if p.requires_grad]
    assert trained and all(p.grad is not None for p in trained)
    with torch.no_grad():
        for p in trained:
            p.add_(0.01)
    lm.save_pretrained(tmp_path)
    again = LanguageModel.from_pretrained(tmp_path, load_in_4bit=True)
    torch.testing.assert_close(scores(again), scores(lm))
