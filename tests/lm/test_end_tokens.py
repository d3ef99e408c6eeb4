"""All components use the same end tokens of the tokenizer, the generation config and the chat template."""

import copy

import pytest
import torch

from groundling.envs.text_env import TextObservation
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.envs.text_generation.env import TextGenerationEnv
from groundling.lm import LanguageModel
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling
from groundling.policies import ActionGeneratingPolicy, ActionWritingPolicy
from groundling.tokenization.chat import Chat
from groundling.tokenization.encoding import EndTokens
from groundling.worlds.writing.collect import References
from groundling.worlds.writing.config import PromptEncoder
from tests.lm.chat_tokenizers import CHATML, CONFIG_END, TEXT_END, TURN_END, byte_level, tiny

# Tokenizer's end token, generation config, and the resulting end tokens: all, of a text, of a turn.
KINDS = {
    "end token is the end of turn": ("<|im_end|>", TURN_END, (TURN_END,), TURN_END),
    "in the generation config": ("<|endoftext|>", [TEXT_END, TURN_END], (TEXT_END, TURN_END), TEXT_END),
    "only in the template": ("<|endoftext|>", TEXT_END, (TEXT_END, TURN_END), TEXT_END),
    "and one of the config alone": ("<|endoftext|>", CONFIG_END, (TEXT_END, TURN_END, CONFIG_END), TEXT_END),
}
_SEEN = TextObservation("go", (("You see a wall",),), (), ("go", "go left", "wait"), {})


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> tuple[LanguageModel, tuple[int, ...], int]:
    eos, configured, ids, of_text = KINDS[request.param]
    return tiny(byte_level(eos), configured), ids, of_text


def test_end_tokens_are_those_of_tokenizer_config_and_template(kind):
    lm, ids, of_text = kind
    assert lm.end_tokens == EndTokens(ids, of_text, TURN_END)
    assert Decoder(lm).ends == list(ids)
    samples = [Sample("a", "go", ("left",))]
    env = TextGenerationEnv(samples, PromptEncoder(lm.tokenizer).tokenizer)
    assert env.end_tokens == set(ids) - {CONFIG_END}  # the env has no model


def test_templates_and_tokenizers_without_an_end():
    assert EndTokens.of(byte_level(template=None)) == EndTokens((TEXT_END,), TEXT_END, TEXT_END)
    broken = byte_level(template="{{ raise_exception('no') }}")
    assert EndTokens.of(broken) == EndTokens((TEXT_END,), TEXT_END, TEXT_END)
    lacking = byte_level()
    lacking.eos_token = None
    assert EndTokens.of(lacking) == EndTokens((TURN_END,), TURN_END, TURN_END)
    assert EndTokens.of(lacking, vocabulary_size=TURN_END) == EndTokens((), None, None)
    spoken = byte_level(template=CHATML.replace("<|im_end|>", ""))  # the start of the next turn then ends a turn
    assert EndTokens.of(spoken).of_turn == 1
    llama2 = byte_level(template=CHATML.replace("<|im_end|>", " <|endoftext|>"))
    assert EndTokens.of(llama2) == EndTokens((TEXT_END,), TEXT_END, TEXT_END)


@torch.no_grad()
def _fit_end(lm: LanguageModel, prompt: list[int]) -> torch.Tensor:
    """Make the model end its turn after ``go``, and return its probabilities there."""
    tokens = [*prompt, *lm.candidate_tokens(["go"])[0]]
    hidden = lm.model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, -1]
    lm.model.lm_head.weight[TURN_END] = 20 * hidden / hidden.square().sum()
    return lm.model(input_ids=torch.tensor([tokens])).logits[0, -1].softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_a_text_ends_with_the_sum_of_all_end_tokens(kind, temperature):
    lm, ids = copy.deepcopy(kind[0]), kind[1]
    writing, generating = (
        made(lm, prompt="conversation", value_hidden_sizes=(8,), temperature=temperature)
        for made in (ActionWritingPolicy, ActionGeneratingPolicy)
    )
    probabilities = _fit_end(lm, writing.read([_SEEN])[0])
    assert probabilities[TURN_END] > 0.98
    space = lm.candidate_tokens([" "])[0][0]
    weights = probabilities ** (1 / temperature)
    ends = weights[list(ids)].sum() / (weights[list(ids)].sum() + weights[space])
    first = writing.distributions([_SEEN]).log_probs[0].exp()
    assert first[0] / first[:2].sum() == pytest.approx(ends.item(), rel=1e-5)
    if temperature == 1:
        assert ends > 0.9999
    actions = torch.arange(3)
    for policy in (writing, generating):
        torch.testing.assert_close(policy.evaluate([_SEEN] * 3, actions).log_probs.exp(), first)
    acted = generating.act([_SEEN] * 40, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(acted.log_probs.exp(), first[acted.actions])
    assert len(set(acted.actions.tolist())) > 1


def test_cloned_turns_end_as_the_template_ends_them_and_plain_texts_as_the_tokenizer_does(kind):
    lm, _, of_text = kind
    for prompt, end in (("conversation", TURN_END), ("brief", of_text)):
        for guided in (True, False):
            policy = ActionGeneratingPolicy(lm, prompt=prompt, value_hidden_sizes=(8,), guided=guided)
            in_conversation = prompt == "conversation"
            assert policy.rules.plain_turn(_SEEN, 0, in_conversation).tokens[-1] == end
            spelled = [*lm.candidate_tokens(["go"])[0], end]
            prompt_ids = lm.prompt_tokens(policy.read([_SEEN]))[0]
            if not guided:
                logits = lm.model(input_ids=torch.tensor([[*prompt_ids, *spelled[:-1]]])).logits[0]
                log_probs = logits[len(prompt_ids) - 1 :].log_softmax(-1)
                expected = log_probs.gather(1, torch.tensor(spelled)[:, None]).sum()
                cloned = policy.evaluate([_SEEN], torch.tensor([0])).log_probs[0]
                torch.testing.assert_close(cloned, expected, atol=1e-4, rtol=1e-5)


def test_references_end_as_the_template_ends_them_and_plain_texts_as_the_tokenizer_does(kind):
    lm, _, of_text = kind
    order = SampleOrder([Sample("a", "go", ("left",))], 0, replacement=False)
    for chat, end in ((Chat(lm.tokenizer), TURN_END), (None, of_text)):
        for has_decoder in (False, True):
            encode = PromptEncoder(lm.tokenizer, chat=chat)
            references = References(order, encode, 1, slice(0, 1), 20, has_decoder)
            assert references._tokens("left") == [*lm.candidate_tokens(["left"])[0], end]


def test_free_answers_and_generations_stop_at_each_end_token(kind):
    lm, ids, _ = kind
    policy = ActionGeneratingPolicy(lm, prompt="conversation", value_hidden_sizes=(8,), guided=False)
    for end in ids:
        answer = policy.rules.answer(_SEEN.actions)
        for token in [*lm.candidate_tokens(["wait"])[0], end]:
            assert not answer.ended
            answer.write(token)
        assert answer.ended and answer.action == 2 and not answer.invalid
    fitted = copy.deepcopy(lm)
    prompt = Chat(lm.tokenizer).opening(None, "hi")
    _fit_end(fitted, prompt)
    prompt = [*prompt, *lm.candidate_tokens(["go"])[0]]
    (written,) = fitted.generate([prompt], max_new_tokens=5)
    assert written.token_ids.tolist() == [TURN_END] and written.text == ""
    assert fitted.generate([prompt], max_new_tokens=5, eos_token_id=None)[0].token_ids.numel() == 5
    sampled = Decoder(fitted)([prompt], Sampling(do_sample=False), torch.rand(1, 5, dtype=torch.float64))
    assert sampled.lengths.tolist() == [1]
