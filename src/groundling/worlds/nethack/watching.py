"""An agent seen at play: step by step, with what it is paid."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.text import Text

from groundling.envs.nethack import make_task, recording_in
from groundling.envs.nethack.observation import TERMINAL_SHAPE, message_text
from groundling.envs.nethack.recording import Screen
from groundling.worlds.nethack.message_scores import Taste
from groundling.worlds.nethack.messages import top_messages
from groundling.worlds.nethack.pairs import Act
from groundling.worlds.showing import Moment, Summary

_SHOWN_MESSAGES = 20
_CAPTION_COLOUR = 14  # light cyan


@dataclass(frozen=True, slots=True)
class Sight:
    """What is shown before an action, and what the one before it was paid."""

    screen: Screen
    step: int
    """How many actions were taken."""
    reward: float
    """The task's, of the last step."""
    episode_return: float
    """Its sum so far."""
    message: bytes
    raw: float | None
    """The reward model's number for the message; None where there is no reward model."""
    normalised: float | None
    intrinsic: float | None
    """What the message is worth here, after threshold and count, without the coefficient."""
    counts: Mapping[bytes, int]
    """How often each message has come up so far, this time included."""
    ended: bool
    """The episode is over: no action follows."""

    def figures_line(self) -> str:
        """Its figures in one line."""
        return " · ".join(self._lines())

    def captioned(self) -> Screen:
        """The screen with its figures below."""
        lines = [line.encode("cp437", "replace")[: TERMINAL_SHAPE[1]] for line in ["", *self._lines()]]
        chars = np.full((len(lines), TERMINAL_SHAPE[1]), ord(" "), dtype=np.uint8)
        for row, line in zip(chars, lines, strict=True):
            row[: len(line)] = np.frombuffer(line, np.uint8)
        return Screen(
            np.concatenate([self.screen.chars, chars]),
            np.concatenate([self.screen.colours, np.full_like(chars, _CAPTION_COLOUR)]),
            self.screen.cursor,
        )

    def _lines(self) -> list[str]:
        lines = [f"step {self.step}  reward {self.reward:+.4g}  return {self.episode_return:.5g}"]
        if self.raw is not None:
            figures = f"{self.intrinsic:.3f} (raw {self.raw:.3f}, normalised {self.normalised:+.2f})"
            lines.append(f"intrinsic {figures}")
        return lines


def sights(act: Act, task: str, args: Mapping[str, Any], seed: int, taste: Taste | None) -> Generator[Sight]:
    """Play the episode with this seed; the last sight is its end.

    Args:
        act: Who plays.
        task: One of `groundling.envs.nethack.TASKS`.
        args: Arguments of `groundling.envs.nethack.tasks.NetHackTask`.
        seed: Of NetHack.
        taste: What the messages are worth.

    Raises:
        ConfigError: nle is missing, or there is no such task or argument.
    """
    env = make_task(task, **recording_in(args, f"seed-{seed}"))
    try:
        observation, _ = env.reset(seed=seed)
        counts: Counter[bytes] = Counter()
        reward, total, step, ended = 0.0, 0.0, 0, False
        while True:
            yield _sight(observation, step, reward, total, counts, taste, ended)
            if ended:
                return
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, step, ended = total + reward, step + 1, terminated or truncated
    finally:
        env.close()


def _sight(
    observation: Any,
    step: int,
    reward: float,
    total: float,
    counts: Counter[bytes],
    taste: Taste | None,
    ended: bool,
) -> Sight:
    message = observation["message"].tobytes()
    if not ended:
        counts[message] += 1
    raw = normalised = intrinsic = None
    if taste is not None:
        (verdict,) = taste.of([message])
        raw, normalised = verdict.raw, verdict.normalised
        intrinsic = 0.0 if ended else taste.paid(message, counts[message])
    screen = Screen.of(observation)
    return Sight(screen, step, reward, total, message, raw, normalised, intrinsic, counts, ended)


def watched(episode: Iterator[Sight], number: int, taste: Taste | None) -> Iterator[Moment]:
    """The sights as `groundling watch` shows them; what is paid and how it ends is news."""
    for sight in episode:
        paid = abs(sight.reward) > 0.5 or (sight.intrinsic or 0.0) > 0
        message = message_text(sight.message)
        yield Moment(
            [f"{sight.figures_line()} · {message}", *([sight.screen.text()] if sight.ended else [])],
            lambda sight=sight: np.asarray(sight.captioned().image()),  # type: ignore[misc]
            screen=_coloured(sight),
            is_news=sight.ended or not sight.step or (paid and bool(message)),
            summary=_summary(sight, number, taste) if sight.ended else None,
        )


def _coloured(sight: Sight) -> Text:
    """The terminal in NetHack's colours, and the figures below it."""
    picture = Text(no_wrap=True)
    for line, colours in zip(sight.screen.text().split("\n"), sight.screen.colours, strict=True):
        for character, colour in zip(line, colours.tolist(), strict=False):
            picture.append(character, style=f"color({colour or 7})")  # black on black would not be seen
        picture.append("\n")
    return picture.append("\n" + sight.figures_line(), style="bold")


def _summary(last: Sight, number: int, taste: Taste | None) -> Summary:
    """An episode's messages, the most frequent first."""
    title = f"episode {number} · {last.step:,} steps · return {last.episode_return:.5g}"
    if taste is not None:
        title += f" · intrinsic return {taste.intrinsic_return(last.counts):.4g}"
    header, rows = ["times", "message"], []
    if taste is not None:
        header.append("normalised reward")
    for row in top_messages(last.counts, taste, _SHOWN_MESSAGES):
        rows.append([str(row["count"]), row["message"] or "(none)"])
        if taste is not None:
            rows[-1].append(f"{row['normalised_reward']:+.2f}")
    return Summary(f"{title} · {len(last.counts)} distinct messages", header, rows)
