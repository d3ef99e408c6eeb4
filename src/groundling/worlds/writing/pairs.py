"""Pairs of texts for the same prompt, for a judge to compare, as in Stiennon et al. 2020 (arXiv 2009.01325)."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from groundling.envs.seeds import training_seed
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import ConfigError
from groundling.judges.preferences.pairs import TextSegment
from groundling.judges.preferences.recording import Recorded, TextRecording
from groundling.worlds.protocols import PairSettings
from groundling.worlds.world import Demonstrator
from groundling.worlds.writing.collect import as_writer, check_lengths, reward_inputs, texts_so_far
from groundling.worlds.writing.config import WritingConfig, make_prompt_encoder, samples_of
from groundling.worlds.writing.measures import make_measured_reward


def _writer(player: Demonstrator) -> Callable[[Sequence[Sample], int], list[Recorded]]:
    """Return a function that, given a seed, samples a text for each prompt and computes its reward."""
    world = player.world
    world.check_player(player)
    policy, num_tokens = as_writer(player.policy), world.config.num_tokens
    encode = make_prompt_encoder(world.config, policy)
    check_lengths(policy, encode.max_prompt_length, num_tokens)
    reward = make_measured_reward(world, policy, samples_of(world.config, "train"))

    @torch.no_grad()
    def write(samples: Sequence[Sample], seed: int) -> list[Recorded]:
        generator = torch.Generator().manual_seed(seed)
        uniforms = torch.rand(len(samples), num_tokens, dtype=torch.float64, generator=generator)
        with policy.unchanged():
            prompts = encode(samples)
            rows = [ids.tolist() for ids in policy.write(prompts, uniforms, num_tokens).token_ids()]
        texts = texts_so_far(policy.lm, prompts, rows, reward is not None and reward.per_token)
        figures: list[dict[str, float]] = [{"steps": float(len(row))} for row in rows]
        if reward is not None:
            for one, total in zip(figures, reward(reward_inputs(samples, texts, rows)).total.sum(0), strict=True):
                one["return"] = total.item()
        return [
            Recorded(TextSegment(sample.prompt, [text[-1]]), one)
            for sample, text, one in zip(samples, texts, figures, strict=True)
        ]

    return write


def record(
    players: Sequence[Demonstrator], settings: PairSettings, on_segment: Callable[[], None] = lambda: None
) -> int:
    """Generate pairs of texts for the pool's training prompts, and return the number of pairs. The two texts come
    from consecutive players in the list, in random order. The config's seed determines all random choices. If the
    process is killed, repeating the call continues with the unfinished batch. ``on_segment`` is called for each text.
    """
    settings.check_texts()
    for name, value in (("length", settings.length), ("stride", settings.stride)):
        if value is not None:
            raise ConfigError(f"--{name} has no effect on pools, whose texts are never split: remove it")
    world = players[0].world
    config: WritingConfig = world.config
    description = {
        "world": "writing",
        "player": settings.name,
        "players": [player.identity for player in players],
        "pool": config.pool,
        "pool_args": config.args,
        "max_prompt_length": config.max_prompt_length,
        "prompt_truncation_side": config.prompt_truncation_side,
        "chat": config.chat,
        "system": config.system,
        "tokens": config.num_tokens,
        "reward": {name: part.model_dump() for name, part in world.reward_parts.items() if part is not None},
        "seed": world.seed,
    }
    rounds = TextRecording(settings.output, description, settings.pairs)
    if rounds.is_written:
        return settings.pairs
    for _ in rounds.segments[: 2 * settings.pairs]:
        on_segment()
    writers = list(map(_writer, players))
    order = SampleOrder(samples_of(config, "train"), world.seed, replacement=False)
    order.draw(len(rounds.segments) // 2)
    while rounds.missing:
        number = rounds.rounds
        samples = order.draw(min(world.evaluation.batch_size, rounds.missing // 2))
        first = writers[number % len(writers)](samples, training_seed(world.seed, 0, number))
        second = writers[(number + 1) % len(writers)](samples, training_seed(world.seed, 1, number))
        rounds.add([text for pair in zip(first, second, strict=True) for text in pair])
        for _ in range(2 * len(samples)):
            on_segment()
    # Do not reuse the random judge's numbers: that judge is seeded with the seed alone.
    swapped = np.random.default_rng((world.seed, 1)).integers(0, 2, settings.pairs)
    places = [(2 * pair + int(swap), 2 * pair + 1 - int(swap)) for pair, swap in enumerate(swapped)]
    return len(rounds.write([place for both in places for place in both]))
