"""The token MDP, compared with values computed by hand from tokens."""

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

import groundling  # noqa: F401  (registers)
from groundling.envs.text_generation import Sample
from groundling.envs.text_generation.env import TextGenerationEnv, encode_prompts
from groundling.errors import ConfigError, GroundlingError


class Calls:
    """A reward that returns the text's length and records its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(
        self,
        prompts: list[str],
        generations: list[str],
        references: list[list[str]],
        meta: list[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        self.calls.append((prompts, generations, references, meta))
        return [float(len(text)) for text in generations]


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _written(tokenizer: PreTrainedTokenizerBase, sample: Sample, tokens: list[int]) -> str:
    """Return the part of the decoded prompt and text that follows the prompt."""
    whole = tokenizer.decode([*tokenizer(sample.prompt)["input_ids"], *tokens], skip_special_tokens=True)
    return whole.removeprefix(sample.prompt)


def _padded(tokens: list[int], length: int, filler: int) -> tuple[list[int], list[int]]:
    kept = tokens[-length:]
    empty = length - len(kept)
    return [filler] * empty + kept, [0] * empty + [1] * len(kept)


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_are_cut_on_one_side_and_padded_on_the_left(
    side: Any, samples: list[Sample], causal_tokenizer: Any, seq2seq_tokenizer: Any
) -> None:
    for tokenizer, end in ((causal_tokenizer, []), (seq2seq_tokenizer, [seq2seq_tokenizer.eos_token_id])):
        before = tokenizer.truncation_side, tokenizer.padding_side
        with pytest.warns(UserWarning, match=f"more than 8 tokens are truncated on the {side}.*max_prompt_length"):
            ids, mask = encode_prompts(samples, tokenizer, 8, side)
        with warnings.catch_warnings(action="error"):
            encode_prompts(samples, tokenizer, 64, side)
        room = 8 - len(end)
        for row, sample in enumerate(samples):
            tokens = _tokens(tokenizer, sample.prompt)
            kept = (tokens[-room:] if side == "left" else tokens[:room]) + end
            expected = _padded(kept, 8, tokenizer.pad_token_id)
            assert (ids[row].tolist(), mask[row].tolist()) == expected
        assert (tokenizer.truncation_side, tokenizer.padding_side) == before
        assert ids.dtype == mask.dtype and str(ids.dtype) == "torch.int64"


def test_prompts_that_cannot_be_encoded_are_errors(
    samples: list[Sample], causal_tokenizer: Any, seq2seq_tokenizer: Any
) -> None:
    with pytest.raises(GroundlingError, match="sample empty has an empty prompt"):
        encode_prompts([*samples, Sample("empty", "")], causal_tokenizer, 8)
    with pytest.raises(GroundlingError, match="sample empty has an empty prompt"):
        encode_prompts([*samples, Sample("empty", "")], seq2seq_tokenizer, 8)  # this tokenizer adds an end token
    with pytest.raises(
        ConfigError, match="max_prompt_length=1: a prompt needs at least 1 token in addition to the 1 special"
    ):
        encode_prompts(samples, seq2seq_tokenizer, 1)
    with pytest.raises(ConfigError, match="max_prompt_length=0"):
        encode_prompts(samples, causal_tokenizer, 0)


def test_tokenizers_need_a_padding_token(samples: list[Sample]) -> None:
    class Bare:
        pad_token_id = None
        eos_token_id = 0

        def __len__(self) -> int:
            return 8

    with pytest.raises(GroundlingError, match=r"set tokenizer\.pad_token to its end token"):
        TextGenerationEnv(samples, Bare())  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [None, 0])
def test_the_env_passes_gymnasiums_checker(start: int | None, samples: list[Sample], seq2seq_tokenizer: Any) -> None:
    env = gymnasium.make(
        "TextGeneration-v0",
        samples=samples,
        tokenizer=seq2seq_tokenizer,
        reward=Calls(),
        max_prompt_length=6,
        max_episode_length=4,
        context_start_token=start,
    )
    check_env(env.unwrapped)


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    start=st.sampled_from([None, 0]),
    max_prompt_length=st.integers(1, 20),
    max_episode_length=st.integers(1, 6),
)
def test_observations_hold_the_tokens(
    causal_tokenizer: Any, data: st.DataObject, start: int | None, max_prompt_length: int, max_episode_length: int
) -> None:
    sample = Sample("a", "pick up the blue key", ("x",), {"k": 1})
    env = TextGenerationEnv(
        [sample],
        causal_tokenizer,
        Calls(),
        max_prompt_length=max_prompt_length,
        max_episode_length=max_episode_length,
        context_start_token=start,
    )
    filler, end = causal_tokenizer.pad_token_id, causal_tokenizer.eos_token_id
    observation, info = env.reset(seed=0)
    prompt = _tokens(causal_tokenizer, sample.prompt)[-max_prompt_length:]
    written: list[int] = []
    done = False
    while True:
        context = ([] if start is None else [start]) + written
        for name, tokens, length in (
            ("prompt", prompt, max_prompt_length),
            ("context", context, max_episode_length),
            ("input", prompt + context, max_prompt_length + max_episode_length),
        ):
            ids, mask = _padded(tokens, length, filler)
            assert observation[f"{name}_ids"].tolist() == ids and observation[f"{name}_mask"].tolist() == mask
        assert info["actions"].tolist() == written and info["prompt_text"] == sample.prompt
        assert env.observation_space.contains(observation)
        if done:
            break
        token = data.draw(st.integers(0, len(causal_tokenizer) - 1) | st.just(end))
        observation, reward, done, truncated, info = env.step(token)
        written.append(token)
        assert done == (token == end or len(written) == max_episode_length) and not truncated
        assert reward == (len(info["context_text"]) if done else 0)
    before = prompt if start is None else []  # a decoder starts a new text
    read, whole = (causal_tokenizer.decode(ids, skip_special_tokens=True) for ids in (before, before + written))
    assert whole == read + info["context_text"]
    assert info["references"] == ("x",) and info["meta"] == {"k": 1} and info["sample_id"] == "a"


def test_observations_do_not_share_memory(samples: list[Sample], causal_tokenizer: Any) -> None:
    envs = [TextGenerationEnv(samples, causal_tokenizer, max_episode_length=4) for _ in range(2)]
    observation = envs[0].reset(seed=0)[0]
    envs[1].reset(seed=0)
    for token in (5, 6, 7):
        for array in observation.values():
            array[:] = 1
        observation = envs[0].step(token)[0]
        untouched = envs[1].step(token)[0]
        assert all((observation[name] == untouched[name]).all() for name in untouched)


def test_the_reward_sees_the_finished_text_once(samples: list[Sample], causal_tokenizer: Any) -> None:
    reward = Calls()
    env = TextGenerationEnv(samples, causal_tokenizer, reward, max_episode_length=3)
    env.reset(options={"sample": samples[1]})
    tokens = [*_tokens(causal_tokenizer, "turn left")[:2], causal_tokenizer.eos_token_id]
    rewards = [env.step(token)[1] for token in tokens]
    text = _written(causal_tokenizer, samples[1], tokens)
    assert reward.calls == [([samples[1].prompt], [text], [["blue", "yellow"]], [{}])]
    assert rewards == [0, 0, len(text)]


class Growth(Calls):
    """A reward per token: the number of characters that it adds to the text."""

    per_token = True

    def at_token(
        self, prompt: str, previous: str, current: str, done: bool, references: list[str], meta: Any
    ) -> float:
        self.calls.append((prompt, previous, current, done, references, meta))
        return len(current) - len(previous)


def test_token_rewards_receive_both_texts(samples: list[Sample], causal_tokenizer: Any) -> None:
    reward = Growth()
    env = TextGenerationEnv(samples, causal_tokenizer, reward, max_episode_length=2)
    _, info = env.reset(options={"sample": samples[0]})
    assert info["context_text"] == ""
    tokens = _tokens(causal_tokenizer, "turn left")[:2]
    one, two = (_written(causal_tokenizer, samples[0], tokens[:n]) for n in (1, 2))
    assert (one, two) == (" turn", " turn left")
    steps = [env.step(token) for token in tokens]
    known = (["red"], {"number": 1})
    prompt = samples[0].prompt
    assert reward.calls == [(prompt, "", one, False, *known), (prompt, one, two, True, *known)]
    assert [step[1] for step in steps] == [len(one), len(two) - len(one)]
    assert [step[4]["context_text"] for step in steps] == [one, two]
    reward.per_token = False  # it is then called only at the end
    env = TextGenerationEnv(samples, causal_tokenizer, reward, max_episode_length=2)
    env.reset(options={"sample": samples[0]})
    assert [env.step(token)[1] for token in tokens] == [0, len(two)]


def test_text_is_decoded_at_the_end_or_every_step(samples: list[Sample], causal_tokenizer: Any) -> None:
    has_text = []
    for every_step in (False, True):
        env = TextGenerationEnv(samples, causal_tokenizer, max_episode_length=2, decode_every_step=every_step)
        infos = [env.reset(seed=0)[1], env.step(9)[4], env.step(9)[4]]
        has_text.append(["context_text" in info for info in infos])
    assert has_text == [[False, False, True], [True, True, True]]


def test_padded_vocabularies_are_allowed(samples: list[Sample], causal_tokenizer: Any) -> None:
    size = len(causal_tokenizer) + 5
    env: Any = TextGenerationEnv(samples, causal_tokenizer, num_actions=size, max_episode_length=1)
    assert env.action_space.n == size
    env.reset(seed=0)
    observation, _, _, _, info = env.step(size - 1)
    assert env.observation_space.contains(observation) and info["context_text"] == ""


def test_equal_seeds_draw_equal_samples(samples: list[Sample], causal_tokenizer: Any) -> None:
    envs = [TextGenerationEnv(samples, causal_tokenizer) for _ in range(2)]
    drawn = [[env.reset(seed=seed)[1]["sample_id"] for seed in range(30)] for env in envs]
    assert drawn[0] == drawn[1] and set(drawn[0]) == {"a", "b", "c"}
    envs[0].reset(seed=1)
    assert len({envs[0].reset()[1]["sample_id"] for _ in range(30)}) == 3  # the random stream continues


@pytest.mark.parametrize(
    ("rewards", "message"), [([float("nan")], "the reward of sample . is nan"), ([float("inf")], "is inf")]
)
def test_broken_rewards_are_errors(
    rewards: list[float], message: str, samples: list[Sample], causal_tokenizer: Any
) -> None:
    env = TextGenerationEnv(samples, causal_tokenizer, lambda *_, meta: rewards, max_episode_length=1)
    env.reset(seed=0)
    with pytest.raises(GroundlingError, match=message):
        env.step(3)


def test_wrong_arguments_and_actions_are_errors(samples: list[Sample], causal_tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="no samples"):
        TextGenerationEnv([], causal_tokenizer)
    env = TextGenerationEnv(samples, causal_tokenizer, max_episode_length=1)
    with pytest.raises(GroundlingError, match="reset the env"):
        env.step(3)
    env.reset(seed=0)
    with pytest.raises(GroundlingError, match=f"action {len(causal_tokenizer)} is not a token"):
        env.step(len(causal_tokenizer))
    env.step(np.int64(3))  # type: ignore[arg-type]
    with pytest.raises(GroundlingError, match="reset the env"):
        env.step(3)
