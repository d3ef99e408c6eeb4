"""The replies of a server equal the outputs of the model."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from groundling.lm import LanguageModel
from groundling.policies import ActionHeadPolicy, ActionScoringPolicy
from groundling.policies.action_generating import ActionGeneratingPolicy
from groundling.policies.token import TokenPolicy
from tests.serving.conftest import Server, served

PROMPT = "You see a red ball 2 steps forward."
ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]
MESSAGES = [
    {"role": "system", "content": "Act."},
    {"role": "user", "content": "Goal: go to the red ball"},
    {"role": "assistant", "content": "turn left"},
    {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
]


def test_log_probabilities_are_those_of_score(server: Server, lm: LanguageModel) -> None:
    with torch.no_grad():
        (scores,) = lm.score([PROMPT], ACTIONS)
    (guided,) = lm.score_guided([PROMPT], ACTIONS).log_probs
    found = dict[str, float]()
    for seed in range(6):
        reply = server.complete(prompt=PROMPT, structured_outputs={"choice": ACTIONS}, logprobs=0, seed=seed)
        (choice,) = reply["choices"]
        assert choice["choice_logprobs"] == pytest.approx(guided.tolist(), abs=1e-5)
        found[choice["text"]] = sum(choice["logprobs"]["token_logprobs"])
    assert len(found) > 1  # the texts are sampled
    assert found == {text: pytest.approx(float(scores[ACTIONS.index(text)]), abs=1e-5) for text in found}


def test_written_tokens_have_their_log_probabilities(server: Server, lm: LanguageModel) -> None:
    reply = server.complete(
        messages=MESSAGES, n=3, max_tokens=12, seed=3, logprobs=True, top_logprobs=2, return_token_ids=True
    )
    prompt = lm.chat.tokens("Act.", ["Goal: go to the red ball", "turn left", PROMPT])
    assert reply["prompt_token_ids"] == prompt
    for choice in reply["choices"]:
        ids, entries = choice["token_ids"], choice["logprobs"]["content"]
        with torch.no_grad():
            logits = lm.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)
        assert [one["logprob"] for one in entries] == pytest.approx(
            [float(row[id]) for row, id in zip(expected, ids, strict=True)], abs=1e-5
        )
        for entry, row in zip(entries, expected, strict=True):
            top = [one["logprob"] for one in entry["top_logprobs"]]
            assert top == pytest.approx(row.topk(2).values.tolist(), rel=1e-5, abs=1e-5)
        assert choice["finish_reason"] == ("stop" if ids[-1] in lm.end_tokens.ids else "length")
    assert len({choice["message"]["content"] for choice in reply["choices"]}) > 1
    assert reply["usage"]["prompt_tokens"] == len(prompt)


def test_a_greedy_text_is_that_of_generate(server: Server, lm: LanguageModel) -> None:
    (made,) = lm.generate([PROMPT], max_new_tokens=20, do_sample=False)
    (choice,) = server.complete(prompt=PROMPT, max_tokens=20, temperature=0, return_token_ids=True)["choices"]
    assert choice["token_ids"] == made.token_ids.tolist() and choice["text"] == made.text
    stop = made.text.split()[2]
    (stopped,) = server.complete(prompt=PROMPT, max_tokens=20, temperature=0, stop=["@", stop])["choices"]
    assert stopped["text"] == made.text[: made.text.index(stop)] and stopped["finish_reason"] == "stop"


def test_a_seed_decides_a_text_whatever_else_is_written(server: Server) -> None:
    def ask(seed: int) -> list[str]:
        reply = server.complete(prompt=[PROMPT, PROMPT[:9]], n=2, max_tokens=3 + seed, seed=seed, top_p=0.9)
        return [choice["text"] for choice in reply["choices"]]

    alone = [ask(seed) for seed in range(5)]
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(ask, range(5))) == alone
    assert len({tuple(texts) for texts in alone}) == 5


@pytest.mark.parametrize("model", ["starter", "starter-causal"])
def test_an_agent_is_served_with_its_own_prompt_and_scores(model: str) -> None:
    lm = LanguageModel.from_pretrained(model)
    policy = ActionScoringPolicy(lm, prompt="glam", value_hidden_sizes=(8,), normalize="token", temperature=0.5)
    with served(policy) as server:
        reply = server.complete(messages=[{"role": "user", "content": PROMPT}], guided_choice=ACTIONS, temperature=0)
        status, refusal = server.post("/chat/completions", {"messages": MESSAGES})
    (scores,) = lm.score([PROMPT], ACTIONS, normalize="token")
    expected = (scores / 0.5).log_softmax(0)
    assert reply["choices"][0]["choice_logprobs"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert reply["choices"][0]["message"]["content"] == ACTIONS[int(expected.argmax())]
    assert status == 400 and "send only one user message" in refusal["error"]["message"]


def test_other_policies_write_but_may_not_choose(lm: LanguageModel) -> None:
    thinks = ActionGeneratingPolicy(lm, thought_begins="Thought:", thought_ends="Action:", value_hidden_sizes=(8,))
    for policy in (thinks, ActionHeadPolicy(lm, len(ACTIONS), hidden_sizes=(8,))):
        with served(policy) as server:
            reply = server.complete(prompt=PROMPT, max_tokens=2, return_token_ids=True)
            status, refusal = server.post("/completions", {"prompt": PROMPT, "guided_choice": ACTIONS})
        opening = reply["choices"][0]["prompt_token_ids"][len(lm.prompt_tokens([PROMPT])[0]) :]
        assert lm.tokenizer.decode(opening).replace(" ", "") == ("Thought:" if policy is thinks else "")
        assert status == 400 and "do not send choices" in refusal["error"]["message"]
    with served(TokenPolicy(lm, value="shared")) as server:
        reply = server.complete(prompt=lm.prompt_tokens([PROMPT])[0], guided_choice=ACTIONS)
    (guided,) = lm.score_guided([PROMPT], ACTIONS).log_probs
    assert reply["choices"][0]["choice_logprobs"] == pytest.approx(guided.tolist(), abs=1e-5)
