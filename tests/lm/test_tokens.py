"""Token ids of texts."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from groundling.lm.tokens import indistinguishable


def test_texts_of_equal_tokens_are_found():
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "press": 1, "go": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    assert indistinguishable(words, ["press {", "go", "press }", "go", "{", "}"]) == [
        ["press {", "press }"],
        ["{", "}"],
    ]
    assert (
        indistinguishable(words, ["press go", "go press", "go", "go"]) == indistinguishable(words, []) == []
    )
