"""Pairs of texts for a judge: two to one prompt, as Stiennon et al. 2020 (arXiv 2009.01325) compare summaries."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from groundling.envs.seeds import training_seed
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import ConfigError
from groundling.judges.preferences.pairs import TextSegment
from groundling.judges.preferences.recording import Recorded, TextRecording
from groundling.policies.token import TokenPolicy
from groundling.worlds.protocols import PairSettings
from groundling.worlds.world import Demonstrator
from groundling.worlds.writing.collect import as_writer, check_lengths, reward_inputs, texts_so_far
from groundling.worlds.writing.config import PromptEncoder, WritingConfig, make_prompt_encoder
from groundling.worlds.writing.measures import make_measured_reward
from groundling.worlds.writing.samples import samples_of


class _Writer:
    def __init__(self, player: Demonstrator) -> None:
        if player.policy is None:
            raise ConfigError(f"{player.name} does not write texts: name a run or an experiment that does")
        world = player.world
        self.policy: TokenPolicy = as_writer(player.policy)
        self._encode: PromptEncoder = make_prompt_encoder(world.config, self.policy)
        self._num_tokens = world.config.num_tokens
        check_lengths(self.policy, self._encode.max_prompt_length, self._num_tokens)
        self._reward = make_measured_reward(world, self.policy, samples_of(world.config, "train"))

    @torch.no_grad()
    def write(self, samples: Sequence[Sample], seed: int) -> list[Recorded]:
        generator = torch.Generator().manual_seed(seed)
        uniforms = torch.rand(len(samples), self._num_tokens, dtype=torch.float64, generator=generator)
        with self.policy.unchanged():
            prompts = self._encode(samples)
            writing = self.policy.write(prompts, uniforms, self._num_tokens)
        rows = [ids.tolist() for ids in writing.token_ids()]
        per_token = self._reward is not None and self._reward.per_token
        texts = texts_so_far(self.policy.lm, prompts, rows, per_token)
        figures: list[dict[str, float]] = [{"steps": float(len(row))} for row in rows]
        if self._reward is not None:
            worths = self._reward(reward_inputs(samples, texts, rows)).total.sum(0).tolist()
            for text_figures, worth in zip(figures, worths, strict=True):
                text_figures["return"] = worth
        return [
            Recorded(TextSegment(sample.prompt, [text[-1]]), text_figures)
            for sample, text, text_figures in zip(samples, texts, figures, strict=True)
        ]


def record(
    players: Sequence[Demonstrator], settings: PairSettings, on_segment: Callable[[], None] = lambda: None
) -> int:
    """Let policies write two texts to each of the pool's training prompts, and return the number of pairs. A prompt's
    texts are by one writer and the next one, in random order. Everything follows from the config's seed; after a kill
    the same call continues with the unfinished batch. ``on_segment`` is called once for each text, including those
    recorded before.
    """
    settings.check_texts()
    for name, value in (("length", settings.length), ("stride", settings.stride)):
        if value is not None:
            raise ConfigError(f"--{name} does nothing where texts are written whole: leave it out")
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
    writers = [_Writer(player) for player in players]
    order = SampleOrder(samples_of(config, "train"), world.seed, replacement=False)
    order.draw(len(rounds.segments) // 2)
    while rounds.missing:
        number = rounds.rounds
        samples = order.draw(min(world.evaluation.batch_size, rounds.missing // 2))
        first = writers[number % len(writers)].write(samples, training_seed(world.seed, 0, number))
        second = writers[(number + 1) % len(writers)].write(samples, training_seed(world.seed, 1, number))
        rounds.add([text for pair in zip(first, second, strict=True) for text in pair])
        for _ in range(2 * len(samples)):
            on_segment()
    # Another stream than that of the seed alone, which the random judge uses.
    swapped = np.random.default_rng((world.seed, 1)).integers(0, 2, settings.pairs)
    places = [(2 * pair + int(swap), 2 * pair + 1 - int(swap)) for pair, swap in enumerate(swapped)]
    return len(rounds.write([place for both in places for place in both]))
