import pytest
from transformers import PreTrainedTokenizerBase

from groundling.envs.text_generation import Sample
from groundling.lm.load.model import load_tokenizer
from groundling.lm.load.model_files import Source, resolve


def _tokenizer(starter: str) -> PreTrainedTokenizerBase:
    return load_tokenizer(Source(resolve(starter)))


@pytest.fixture(scope="session")
def causal_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer that adds no special tokens."""
    return _tokenizer("starter-causal")


@pytest.fixture(scope="session")
def seq2seq_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer that appends its end token to every prompt, like that of T5."""
    return _tokenizer("starter")


@pytest.fixture
def samples() -> list[Sample]:
    return [
        Sample("a", "go to the red ball", ("red",), {"number": 1}),
        Sample("b", "pick up the blue key and open the yellow door", ("blue", "yellow")),
        Sample("c", "wait"),
    ]
