"""Frames of a text: token by token, with the likeliest alternatives."""

from collections.abc import Iterator

import torch

from groundling.envs.text_generation.pools import Split
from groundling.errors import RunError
from groundling.policies.token import TokenPolicy
from groundling.tokenization.detokenize import Continuation
from groundling.worlds.display import Frame, Summary
from groundling.worlds.world import World
from groundling.worlds.writing.collect import reward_inputs
from groundling.worlds.writing.measures import make_measured_reward
from groundling.worlds.writing.prompt_encoder import make_prompt_encoder
from groundling.worlds.writing.samples import samples_of

_ALTERNATIVES = 5


@torch.no_grad()
def watch(world: World, policy: TokenPolicy, split: Split, number: int) -> Iterator[Frame]:
    """Write to a prompt of a split as in training; each frame has a token and the likeliest alternatives."""
    config = world.config
    samples = samples_of(config, split)
    if number >= len(samples):
        raise RunError(f"the {split} split of pool {config.pool!r} has {len(samples)} samples: ask for fewer")
    sample, prompts = samples[number], make_prompt_encoder(config, policy)([samples[number]])
    num_tokens = config.num_tokens
    generator = torch.Generator().manual_seed(world.seed + number)
    uniforms = torch.rand(1, num_tokens, dtype=torch.float64, generator=generator)
    writing = policy.write(prompts, uniforms, num_tokens)
    ids = writing.token_ids()[0].tolist()
    actions = writing.actions[: len(ids)].T  # (1, length)
    likely = policy.evaluate(writing.observations, actions).log_distributions()[0].exp()  # (length, tokens)
    tokenizer, read = policy.lm.tokenizer, () if policy.lm.is_encoder_decoder else prompts[0].ids
    text, written = "", Continuation(tokenizer, read)
    for position, token in enumerate(ids):
        values, tokens = likely[position].topk(min(_ALTERNATIVES, likely.shape[-1]))
        likeliest = dict(zip(tokens.tolist(), values.tolist(), strict=True))
        likeliest[token] = likely[position, token].item()
        before = [*read, *ids[:position]]
        named = {one: repr(Continuation(tokenizer, before, False).append(one)) for one in likeliest}
        text = written.append(token)
        yield Frame(
            [sample.prompt, f"> {text}"],
            action=named[token],
            probabilities={named[one]: value for one, value in likeliest.items()},
            is_notable=False,
        )
    title = f"text {number} · {len(ids)} tokens"
    reward = make_measured_reward(world, policy, samples)
    if reward is not None and not reward.per_token:
        worth = reward(reward_inputs([sample], [[text]])).total.sum().item()
        title += f" · reward {worth:.4g}"
    yield Frame([sample.prompt, f"> {text}"], summary=Summary(title))
