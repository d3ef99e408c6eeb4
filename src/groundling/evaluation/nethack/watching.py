"""An agent seen at play: step by step, with what it is paid."""

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from groundling.envs.nethack import make_task, recording_in
from groundling.envs.nethack.observation import TERMINAL_SHAPE, message_text
from groundling.envs.nethack.recording import Screen
from groundling.evaluation.nethack.taste import Taste
from groundling.judges.record import Act

_CAPTION_COLOUR = 14  # light cyan


@dataclass(frozen=True, slots=True)
class Moment:
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

    def told(self) -> str:
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


def moments(
    act: Act, task: str, args: Mapping[str, Any], seed: int, taste: Taste | None
) -> Generator[Moment]:
    """Play the episode with this seed; the last moment is its end.

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
            yield _moment(observation, step, reward, total, counts, taste, ended)
            if ended:
                return
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, step, ended = total + reward, step + 1, terminated or truncated
    finally:
        env.close()


def _moment(
    observation: Any,
    step: int,
    reward: float,
    total: float,
    counts: Counter[bytes],
    taste: Taste | None,
    ended: bool,
) -> Moment:
    message = observation["message"].tobytes()
    if not ended:
        counts[message] += 1
    raw = normalised = intrinsic = None
    if taste is not None:
        (verdict,) = taste.of([message])
        raw, normalised = verdict.raw, verdict.normalised
        intrinsic = 0.0 if ended else taste.paid(message, counts[message])
    screen = Screen.of(observation)
    return Moment(screen, step, reward, total, message, raw, normalised, intrinsic, counts, ended)


def is_worth_telling(moment: Moment) -> bool:
    """Whether something was paid, or the episode begins or ends: what is told where there is no terminal."""
    paid = abs(moment.reward) > 0.5 or (moment.intrinsic or 0.0) > 0
    return moment.ended or not moment.step or (paid and bool(message_text(moment.message)))
