"""A language model in this process as a judge."""

from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from groundling.judges import Annotation, MessagePairs, Question, Reply, Request, TransformersJudge
from tests.judges.preferences.test_pairs import encode

_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def chooser() -> TransformersJudge:
    return TransformersJudge("starter-causal", device="cpu", batch_size=4)


def test_the_three_verdicts_are_scored(chooser: TransformersJudge, tmp_path: Path) -> None:
    texts = ["", "You kill the newt!", "It's a wall."]
    rows = [(a, b) for a in texts for b in texts]
    messages = encode(*(t for row in rows for t in row)).reshape(9, 2, 1, 256)
    pairs = MessagePairs.create(tmp_path / "pairs", {"message": messages})
    Annotation(pairs, chooser, Question(world="nethack"), both_orders=True).run("lm")
    labels, soft = pairs.preferences("lm"), pairs.soft_preferences("lm")
    assert soft is not None
    log_prob = cache(partial(_log_prob, chooser))  # each prompt occurs twice
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-5)
    for row, (first, second) in enumerate(rows):
        if first == second:
            assert labels[row] == 2
            continue
        # Computed independently: the model's next-token log-probabilities in both orders, with a batch size of one.
        expected, verdicts = np.zeros(3), []
        for turned, shown in enumerate([(first, second), (second, first)]):
            prompt = chooser.prompt(Question(world="nethack").conversation(*shown, "choice"))
            logits = [log_prob(prompt, word) for word in ("1", "2", "tie")]
            probabilities = torch.tensor(logits).double().softmax(-1).numpy()
            probabilities = probabilities[[1, 0, 2]] if turned else probabilities
            expected += probabilities / 2
            verdicts.append(int(probabilities.argmax()))
        np.testing.assert_allclose(soft[row], expected, atol=1e-4)
        assert labels[row] == (verdicts[0] if verdicts[0] == verdicts[1] else 2)


def _log_prob(judge: TransformersJudge, prompt: str, word: str) -> float:
    tokenizer = judge.lm.tokenizer
    prompt_ids = tokenizer(prompt)["input_ids"]
    more = tokenizer(word, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = judge.lm.model(torch.tensor([prompt_ids + more])).logits[0].log_softmax(-1)
    return float(sum(logits[len(prompt_ids) - 1 + i, token] for i, token in enumerate(more)))


def test_the_tokenizers_own_template_is_used(chooser: TransformersJudge) -> None:
    conversation = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert chooser.prompt(conversation) == "S\n\nU\n\nAnswer: "
    tokenizer = chooser.lm.tokenizer
    try:
        tokenizer.chat_template = _TEMPLATE
        printed = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert chooser.prompt(conversation) == printed
        assert printed.count(tokenizer.bos_token_id) == 1
        # Templates like Gemma's reject system turns; their text then precedes the user's.
        refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + _TEMPLATE
        tokenizer.chat_template = refusing
        merged = [{"role": "user", "content": "S\n\nU"}]
        printed = tokenizer.apply_chat_template(merged, add_generation_prompt=True, return_dict=False)
        assert chooser.prompt(conversation) == printed
    finally:
        tokenizer.chat_template = None


def test_no_caption_holds_a_control_token(chooser: TransformersJudge) -> None:
    special = set(chooser.lm.tokenizer.all_special_ids)
    hostile = "a<|endoftext|>b<pad>c<unk>"
    conversation = Question(world="nethack").conversation(hostile, hostile, "choice", chooser.control_tokens)
    user = chooser.lm.tokenizer(conversation[1]["content"], add_special_tokens=False)["input_ids"]
    unknown = chooser.lm.tokenizer.unk_token_id
    assert not special - {unknown} & set(user)


def test_a_judge_that_writes_is_asked_again_in_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = TransformersJudge("starter-causal", answer="line", device="cpu", batch_size=3, max_tokens=4, seed=1)
    question = Question("zeroknowledge", world="nethack")
    sizes: list[int] = []
    write = judge._write
    monkeypatch.setattr(judge, "_write", lambda batch: (sizes.append(len(batch)), write(batch))[1])
    replies: list[tuple[int, int]] = []

    def on_reply(request: Request, reply: Reply) -> Request | None:
        replies.append((request.number, len(request.conversation)))
        assert reply.completion_tokens <= 4 and reply.prompt_tokens > 50
        assert reply.complete == (reply.completion_tokens < 4)
        if len(request.conversation) > 2 or request.number % 2:
            return None
        return Request(request.number, question.retry(request.conversation, reply.text, "line"), question)

    requests = [Request(n, question.conversation(f"a{n}", "b", "line"), question) for n in range(4)]
    judge.ask(iter(requests), on_reply)
    assert sizes == [3, 3], "the second batch: what 0 and 2 are asked again, and 3"
    assert sorted(replies) == [(0, 2), (0, 4), (1, 2), (2, 2), (2, 4), (3, 2)]
    assert judge.identity()["sampling"]["temperature"] == 0.1


def test_a_judge_does_not_disturb_the_global_generator(chooser: TransformersJudge) -> None:
    writer = TransformersJudge("starter-causal", "line", device="cpu", temperature=1.0, max_tokens=4)
    texts: list[str] = []
    for judge in (chooser, writer):
        torch.manual_seed(5)
        expected = torch.rand(6)
        torch.manual_seed(5)
        drawn = torch.rand(3)
        for _ in range(2):
            question = Question(world="nethack")
            request = Request(0, question.conversation("a", "b", judge.answer_format), question)
            judge.ask(iter([request]), lambda request, reply: texts.append(reply.text))
        assert torch.equal(torch.cat([drawn, torch.rand(3)]), expected)
    assert texts[2] != texts[3], "not the same numbers for each batch"
