"""The properties of the bundled models on which policies rely."""

import socket
from pathlib import Path

import pytest
from starter_probes import QUESTIONS, exact
from starter_words import ENGLISH
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import groundling
from tests.thorough import THOROUGH, thorough

STARTER = Path(groundling.__file__).parent / "lm" / "starter"
KINDS = {"encoder_decoder": AutoModelForSeq2SeqLM, "causal": AutoModelForCausalLM}
ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]
PROMPT = (
    "Possible action of the agent: turn left, turn right, go forward, pick up, drop, toggle \n "
    "Goal of the agent: go to the red ball \n Observation 0: You see a wall 3 steps forward, "
    "You see a wall 2 steps left, You see a red ball 2 steps left and 1 step forward, \n Action 0: "
)
TEXTS = [
    "",
    " ",
    "turn left",
    " turn left",
    "  two  spaces  ",
    "line\r\nline\n\n\ttab ",
    "Tu vois une boîte violette fermée à clef, là-bas… l'œuf d'Ève",
    "日本語 Ελληνικά العربية 🙂👍🏽 \u200b a\u0301 \x00",
    PROMPT,
]


@pytest.fixture(scope="module", params=KINDS)
def starter(request):
    folder = STARTER / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _no_network)
        model = KINDS[request.param].from_pretrained(folder).eval()
        return folder, model, AutoTokenizer.from_pretrained(folder)


def _no_network(*_args):
    raise AssertionError("a bundled model reached for the network")


def test_is_small_and_safe(starter):
    folder, model, _ = starter
    files = list(folder.iterdir())
    assert 0.8e6 <= sum(parameter.numel() for parameter in model.parameters()) <= 1.3e6
    assert sum(file.stat().st_size for file in files) <= 5e6
    assert {file.suffix for file in files} == {".json", ".safetensors"}


def test_any_text_comes_back(starter):
    _, _, tokenizer = starter
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_word_has_one_token_alone_and_inside_a_text(starter):
    _, _, tokenizer = starter
    prompt = tokenizer(PROMPT, add_special_tokens=False).input_ids
    for action in ACTIONS:
        ids = tokenizer(action, add_special_tokens=False).input_ids
        assert len(ids) == len(action.split())
        assert any(prompt[start : start + len(ids)] == ids for start in range(len(prompt)))


def test_special_tokens(starter):
    folder, model, tokenizer = starter
    assert tokenizer.pad_token_id == model.config.pad_token_id == 0
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert len(tokenizer) == model.config.vocab_size
    ids = tokenizer("go forward").input_ids
    if folder.name == "encoder_decoder":
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token == "</s>"
        assert model.config.decoder_start_token_id == 0
    else:
        assert len(ids) == 2
        assert tokenizer.bos_token == tokenizer.eos_token == "<|endoftext|>"
        assert model.config.max_position_embeddings == 1024


@THOROUGH
@pytest.mark.parametrize(("condition", "least"), [("pairs", 0.95), *thorough(("nouns", 0.8), ("things", 0.8))])
def test_generalises_to_unseen_questions(starter, condition, least):
    """Check exact answers for held-out pairs of colour and noun, held-out nouns, and more objects than in any text."""
    folder, model, _ = starter
    loaded = model, AutoTokenizer.from_pretrained(folder, padding_side="left")
    # Nouns alone are excluded (see the model card), because the training texts do not contain them.
    kinds = [kind for kind in QUESTIONS if kind != "noun alone"]
    shares = {kind: exact(loaded, ENGLISH, condition, kind, number=40) for kind in kinds}
    assert sum(shares.values()) / len(shares) >= least, shares
