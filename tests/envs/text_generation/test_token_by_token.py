"""The token MDP, stepped token by token, compared with the whole texts that a run's collector generates."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from groundling.envs.text_generation import Sample, SampleOrder
from groundling.envs.text_generation.env import TextGenerationEnv
from groundling.lm import LanguageModel
from groundling.policies import TokenPolicy
from groundling.rewards import Reward, RewardSum, TextPart, TokenReward
from groundling.worlds.writing.collect import WrittenTexts
from groundling.worlds.writing.config import PromptEncoder
from tests.lm.conftest import make_lm, tokenizers
from tests.lm.families import VOCABULARY
from tests.thorough import some_of, thorough

__all__ = ["make_lm", "tokenizers"]

NUM_TEXTS, NUM_TOKENS, PROMPT_LENGTH = 100, 8, 10
FAMILIES = ["gpt2", "llama", "t5", "bart"]
WORDS = ["turn", "left", "right", "go", "to", "the", "red", "ball", "pick", "up", "a", "blue", "key", "toggle"]


@dataclass(kw_only=True)
class Overlap(Reward):
    """The number of the text's letters that occur in its prompt, minus those in its reference."""

    def score(self, prompts: Any, generations: Any, references: Any, meta: Any) -> list[float]:
        return [
            sum(letter in p for letter in g) - 0.5 * sum(letter in r[0] for letter in g) + m["number"]
            for p, g, r, m in zip(prompts, generations, references, meta, strict=True)
        ]


@dataclass(kw_only=True)
class Growth(TokenReward):
    """The number of characters that a token adds, plus a bonus for the end of the text."""

    def at_token(self, prompt: str, previous: str, current: str, done: bool, references: Any, meta: Any) -> float:
        assert current.startswith(previous) or "\ufffd" in previous  # half a character
        return len(current) - 0.25 * len(previous) + 10 * done + len(references[0]) + meta["number"]


def _samples(count: int) -> list[Sample]:
    """Return prompts of 1 to 14 words, of which `PROMPT_LENGTH` tokens are read."""
    generator = torch.Generator().manual_seed(0)

    def text(longest: int) -> str:
        length = int(torch.randint(1, longest, (), generator=generator))
        return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator).tolist())

    return [Sample(str(i), text(15), (text(4),), {"number": i}) for i in range(count)]


def _ending_often(lm: LanguageModel) -> LanguageModel:
    """Make every seventh token an end token, because an untrained model hardly ever ends a text."""
    lm.model.generation_config.eos_token_id = list(range(1, VOCABULARY, 7))  # type: ignore[union-attr]
    return lm


@pytest.mark.parametrize("reward", [Overlap, *thorough(Growth)])
@pytest.mark.parametrize(
    ("family", "ends"),
    some_of(itertools.product(FAMILIES, [True, False]), [("llama", True), ("bart", False), ("t5", True)]),
)
def test_stepping_the_env_equals_writing_at_once(
    family: str, ends: bool, reward: type[Reward], make_lm: Callable[..., LanguageModel]
) -> None:
    lm = _ending_often(make_lm(family))
    start = lm.start_token if lm.is_encoder_decoder else None
    generation = {"terminate_on_eos": ends, "top_k": 60, "temperature": 1.2, "min_new_tokens": 1 if ends else 0}
    policy = TokenPolicy(lm, generation=generation, context_start_token=start)
    samples = _samples(NUM_TEXTS)
    order = SampleOrder(samples, 1, replacement=False)
    encode = PromptEncoder(lm.tokenizer, PROMPT_LENGTH)
    collector = WrittenTexts(
        order, encode, RewardSum({"it": TextPart(reward())}), NUM_TEXTS, slice(0, NUM_TEXTS), NUM_TOKENS
    )
    rollout, texts = collector.collect(policy, generator=torch.Generator().manual_seed(3))

    envs = [_env(lm, reward(), ends, start) for _ in samples]
    drawn = SampleOrder(samples, 1, replacement=False).draw(NUM_TEXTS)
    for env, sample in zip(envs, drawn, strict=True):
        env.reset(options={"sample": sample})
    assert rollout.mask is not None
    going = torch.ones(NUM_TEXTS, dtype=torch.bool)
    returns = torch.zeros(NUM_TEXTS)
    for step in range(NUM_TOKENS):
        assert torch.equal(rollout.mask[step], going)
        if not going.any():
            break
        rows = going.nonzero()[:, 0].tolist()
        for i in rows:
            _, gained, done, _, info = envs[i].step(int(rollout.actions[step, i]))
            assert gained == rollout.rewards[step, i] and done == rollout.dones[step, i]
            returns[i] += gained
            going[i] = not done
            if done:
                text = texts[i].record
                assert (info["context_text"], info["sample_id"]) == (text["generation"], text["sample_id"])
    assert not rollout.mask[step + 1 :].any()
    assert returns.tolist() == pytest.approx([text.episode_return for text in texts])
    lengths = rollout.mask.sum(0)
    if ends:
        assert lengths.min() == 2 and 0.1 < (lengths < NUM_TOKENS).float().mean() < 0.95, lengths
    else:
        assert (lengths == NUM_TOKENS).all()


def _env(lm: LanguageModel, reward: Reward, ends: bool, start: int | None) -> TextGenerationEnv:
    return TextGenerationEnv(
        _samples(1),
        lm.tokenizer,
        reward,
        max_prompt_length=PROMPT_LENGTH,
        max_episode_length=NUM_TOKENS,
        terminate_on_eos=ends,
        end_tokens=lm.end_tokens.ids,
        context_start_token=start,
        num_actions=lm.model.config.vocab_size,
    )
