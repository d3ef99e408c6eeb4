"""Conversations with tools, with templates that support tools and with others."""

import json
from typing import Any

import pytest

from groundling.policies.text_states import ConversationTokens
from groundling.prompts.prompt import Conversation
from tests.lm.chat_tokenizers import CHATML, byte_level, tiny

_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% if tools or system %}{{ '<|im_start|>system\n' + system }}"
    "{% if tools %}{{ '\n# Tools' }}{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}"
    "{{ '\n<tool_call>\n{\"name\": <name>}\n</tool_call>' }}{% endif %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m['content'] + '\n</tool_response><|im_end|>\n' }}{% else %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "buy",
        "description": "Buy bread.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer", "description": "How many."}}},
    },
}
_CALL = '<tool_call>{"name": "buy"}</tool_call>'


def _tokenizer(template: str) -> Any:
    tokenizer = byte_level(template=template)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])  # not special, as in Qwen's tokenizers
    return tokenizer


def _conversation(turns: int) -> Conversation:
    results = tuple(f"loaf {turn} <|im_end|>" for turn in range(turns))
    return Conversation("Act.", "Buy 2", ("", *results), ("",) * (turns + 1), (_CALL,) * turns, (json.dumps(_SCHEMA),))


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_tokens_are_those_of_the_template_with_tools(turns: int) -> None:
    lm = tiny(_tokenizer(_TEMPLATE))
    lm.max_prompt_tokens = 500
    encode = ConversationTokens(lm, 4)
    encode(_conversation(max(0, turns - 1)))  # with a growing conversation
    tokens = encode(_conversation(turns))
    messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": "Buy 2"}]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": _CALL})
        messages.append({"role": "tool", "content": f"loaf {turn} <|im_end|>"})
    text = lm.tokenizer.apply_chat_template(messages, tools=[_SCHEMA], tokenize=False, add_generation_prompt=True)
    assert lm.tokenizer.decode(tokens) == text
    call, end = (lm.tokenizer.convert_tokens_to_ids(token) for token in ("<tool_call>", "<|im_end|>"))
    assert tokens.count(call) == 1 + turns  # one in the instructions, and one per answer
    assert tokens.count(end) == 2 + 2 * turns  # none in a tool's result


def test_other_templates_get_the_tools_as_text() -> None:
    encode = ConversationTokens(lm := tiny(_tokenizer(CHATML)), 4)
    text = lm.tokenizer.decode(encode(_conversation(1)))
    assert "Act.\n\nYou can call tools:\nbuy(number: integer): Buy bread.\n" in text and "tool_response" not in text
    assert "<|im_start|>user\nloaf 0" in text


def test_a_long_conversation_keeps_its_task_and_tools() -> None:
    lm = tiny(_tokenizer(_TEMPLATE))
    lm.max_prompt_tokens = 420
    with pytest.warns(match="lose their first turns"):
        text = lm.tokenizer.decode(ConversationTokens(lm, 4)(_conversation(8)))
    assert "Buy 2" in text and '"name": "buy"' in text and "loaf 7" in text and "loaf 0" not in text
