"""Token ids of texts."""

import warnings

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from groundling.lm.tokens import ModelTokens, indistinguishable


def test_texts_of_equal_tokens_are_found():
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "press": 1, "go": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    assert indistinguishable(words, ["press {", "go", "press }", "go", "{", "}"]) == [
        ["press {", "press }"],
        ["{", "}"],
    ]
    assert indistinguishable(words, ["press go", "go press", "go", "go"]) == indistinguishable(words, []) == []


@pytest.mark.parametrize("adds", [True, False])
def test_a_beginning_token_that_prompt_and_tokenizer_both_write_is_reported(adds):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "go": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")
    tokens = ModelTokens(words, 3, 1, None, False, None, adds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tokens.prompt_tokens(["<s> go", "go"]) == ([[1, 1, 2], [1, 2]] if adds else [[1, 2], [2]])
    assert [str(one.message)[:36] for one in caught] == ["a prompt starts with <s> twice, once"] * adds
