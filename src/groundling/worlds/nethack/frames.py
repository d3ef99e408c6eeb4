"""Frames of NetHack: the steps of an episode for `groundling watch`, and pictures of some steps for reports."""

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.text import Text

from groundling.envs.nethack import make_task, recording_in
from groundling.envs.nethack.observation import TERMINAL_SHAPE, message_text
from groundling.envs.nethack.recording import Screen
from groundling.errors import GroundlingError
from groundling.judges.preferences.pairs import decode
from groundling.judges.reward_models import load_reward_model
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.rewards.part import RewardPartConfig
from groundling.rewards.reward_model_part import MODEL, RewardModelPart
from groundling.rewards.sum import FOLDER
from groundling.runtime.devices import find_device
from groundling.worlds.episode import EpisodeView, Frame, ReportTable, Summary
from groundling.worlds.nethack.pairs import Act


@dataclass(frozen=True)
class MessageScore:
    raw: float  # the reward model's output
    normalised: float  # in standard deviations from the mean; for a model that outputs labels, the label
    first: float  # reward for the first occurrence in an episode, without the coefficient


class MessageScores:
    """A reward model's scores for messages, each computed once, and a reward part's rewards based on them."""

    def __init__(self, model: RewardModel, part: RewardModelPart) -> None:
        part.check_normalization(model.normalization)
        self._model, self._part = model, part
        self._known: dict[bytes, MessageScore] = {}

    def of(self, messages: Sequence[bytes]) -> list[MessageScore]:
        new = [message for message in dict.fromkeys(messages) if message not in self._known]
        if new:
            rows = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
            raw = self._model.rewards(list(map(decode, rows)))  # (len(new),)
            spread = self._model.normalization
            normalised = raw if spread is None else (raw - spread.mean) / spread.variance**0.5
            first = self._part.transform(raw, torch.ones_like(raw), spread)
            figures = zip(raw.tolist(), normalised.tolist(), first.tolist(), strict=True)
            self._known |= {message: MessageScore(*row) for message, row in zip(new, figures, strict=True)}
        return [self._known[message] for message in messages]

    def reward(self, message: bytes, count: int) -> float:
        """Return the intrinsic reward for a message's ``count``-th occurrence, without the coefficient."""
        return self.of([message])[0].first / count**self._part.count_exponent

    def intrinsic_return(self, counts: Mapping[bytes, int]) -> float:
        """Sum an episode's intrinsic rewards, given the number of occurrences of each message."""
        exponent = self._part.count_exponent
        return sum(
            score.first * float((np.arange(1.0, count + 1) ** -exponent).sum())
            for score, count in zip(self.of(list(counts)), counts.values(), strict=True)
        )


def make_message_scores(
    reward: Mapping[str, RewardPartConfig | None], device: str, checkpoint: Path | None = None
) -> MessageScores | None:
    """Load a run's first reward model, even if its coefficient is 0; use ``checkpoint`` if it was trained online."""
    named = [(name, part) for name, part in reward.items() if part is not None and (part.id or name) == "reward_model"]
    if not named:
        return None
    name, settings = named[0]
    part = RewardModelPart(**settings.args)
    learnt = None if checkpoint is None else checkpoint / FOLDER / name / MODEL
    folder = learnt if learnt is not None and learnt.exists() else part.path
    return None if folder is None else MessageScores(load_reward_model(folder, find_device(device)), part)


_MOST = 15  # Number of most frequent messages per agent
_MOST_IN_REPORTS = 20


def most_frequent(
    messages: Mapping[str, Sequence[Mapping[bytes, int]]], scores: MessageScores | None
) -> list[dict[str, Any]]:
    """Return all agents' most frequent messages with their rewards as JSON, given the counts by agent and episode."""
    occurrences: dict[str, Counter[bytes]] = {name: Counter() for name in messages}
    for name, played in messages.items():
        for counts in played:
            occurrences[name].update(counts)
    top = [m for counts in occurrences.values() for m, _ in counts.most_common(_MOST + 1) if message_text(m)]
    return [
        {
            "message": message_text(message),
            "normalised_reward": None if scores is None else scores.of([message])[0].normalised,
            "per_episode": {name: occurrences[name][message] / len(played) for name, played in messages.items()},
        }
        for message in dict.fromkeys(top)
    ]


def top_messages(counts: Mapping[bytes, int], scores: MessageScores | None, limit: int = 100) -> list[dict[str, Any]]:
    """Return an episode's messages with their rewards as JSON, the most frequent first."""
    return [
        {
            "message": message_text(message),
            "count": count,
            "normalised_reward": None if scores is None else scores.of([message])[0].normalised,
        }
        for message, count in Counter(counts).most_common(limit)
    ]


def signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def table_of(suite: str, evaluation: Mapping[str, Any]) -> ReportTable:
    ordered = sorted(evaluation["messages"], key=lambda row: -max(row["per_episode"].values()))
    rows = [
        [row["message"], signed(row["normalised_reward"]), *(f"{count:.2f}" for count in row["per_episode"].values())]
        for row in ordered[:_MOST_IN_REPORTS]
    ]
    return ReportTable(
        "Messages that the agents see",
        [[(name, 1) for name in ("message", "normalised reward", *evaluation["agents"])]],
        rows,
        "Average number of times that each of the most frequent messages appears per episode. Normalised reward: the "
        "reward model's output in standard deviations from its mean.",
        suite,
    )


_SHOWN_MESSAGES = 20
_PICTURES, _PIXELS = 6, 640
_CAPTION_COLOUR = 14  # light cyan


@dataclass(frozen=True, slots=True)
class NetHackStep:
    """The screen before an action, and the reward for the previous action."""

    screen: Screen
    step: int  # number of actions so far
    reward: float  # the task's reward for the last action
    episode_return: float  # sum of the task's rewards so far
    message: bytes
    score: MessageScore | None  # the message's score; None if there is no reward model
    intrinsic: float | None  # the message's reward with threshold and count applied, but no coefficient
    counts: Mapping[bytes, int]  # number of occurrences of each message so far, including this one
    ended: bool  # True if no action follows

    def figures_line(self) -> str:
        return " · ".join(self._lines())

    def picture(self) -> np.ndarray:
        """Render the screen with the rewards below it, as uint8 ``(height, width, 3)``."""
        lines = [line.encode("cp437", "replace")[: TERMINAL_SHAPE[1]] for line in ["", *self._lines()]]
        chars = np.full((len(lines), TERMINAL_SHAPE[1]), ord(" "), dtype=np.uint8)
        for row, line in zip(chars, lines, strict=True):
            row[: len(line)] = np.frombuffer(line, np.uint8)
        colours = np.concatenate([self.screen.colours, np.full_like(chars, _CAPTION_COLOUR)])
        screen = Screen(np.concatenate([self.screen.chars, chars]), colours, self.screen.cursor)
        return np.asarray(screen.image())

    def _lines(self) -> list[str]:
        lines = [f"step {self.step}  reward {self.reward:+.4g}  return {self.episode_return:.5g}"]
        if self.score is not None:
            figures = f"raw {self.score.raw:.3f}, normalised {self.score.normalised:+.2f}"
            lines.append(f"intrinsic {self.intrinsic:.3f} ({figures})")
        return lines


def play_steps(
    act: Act, task: str, args: Mapping[str, Any], seed: int, scores: MessageScores | None
) -> Generator[NetHackStep]:
    """Play the episode with this seed; the last step yielded is the end of the episode."""
    with closing(make_task(task, **recording_in(args, f"seed-{seed}"))) as env:
        observation, _ = env.reset(seed=seed)
        counts: Counter[bytes] = Counter()
        reward, total, step, ended = 0.0, 0.0, 0, False
        while True:
            message, score, intrinsic = observation["message"].tobytes(), None, None
            if not ended:
                counts[message] += 1
            if scores is not None:
                score = scores.of([message])[0]
                intrinsic = 0.0 if ended else scores.reward(message, counts[message])
            screen = Screen.of(observation)
            yield NetHackStep(screen, step, reward, total, message, score, intrinsic, counts, ended)
            if ended:
                return
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, step, ended = total + reward, step + 1, terminated or truncated


def frames_of(steps: Iterator[NetHackStep], number: int, scores: MessageScores | None) -> Iterator[Frame]:
    """Convert steps to frames for `groundling watch`; steps with rewards, the first step and the end are notable."""
    for step in steps:
        is_paid = abs(step.reward) > 0.5 or (step.intrinsic or 0.0) > 0
        message = message_text(step.message)
        yield Frame(
            [f"{step.figures_line()} · {message}", *([step.screen.text()] if step.ended else [])],
            step.picture,
            screen=_coloured(step),
            is_notable=step.ended or not step.step or (is_paid and bool(message)),
            summary=_summary(step, number, scores) if step.ended else None,
        )


def _coloured(step: NetHackStep) -> Text:
    picture = Text(no_wrap=True)
    for line, colours in zip(step.screen.text().split("\n"), step.screen.colours, strict=True):
        for character, colour in zip(line, colours.tolist(), strict=False):
            picture.append(character, style=f"color({colour or 7})")  # black on black is invisible
        picture.append("\n")
    return picture.append("\n" + step.figures_line(), style="bold")


def _summary(last: NetHackStep, number: int, scores: MessageScores | None) -> Summary:
    title = f"episode {number} · {last.step:,} steps · return {last.episode_return:.5g}"
    if scores is not None:
        title += f" · intrinsic return {scores.intrinsic_return(last.counts):.4g}"
    header = ["times", "message", "normalised reward"][: 2 if scores is None else 3]
    rows = [
        [str(row["count"]), row["message"] or "(none)", signed(row["normalised_reward"])][: len(header)]
        for row in top_messages(last.counts, scores, _SHOWN_MESSAGES)
    ]
    return Summary(f"{title} · {len(last.counts)} distinct messages", header, rows)


def view(
    reward: Mapping[str, RewardPartConfig | None], device: str, run_dir: Path, sample: Mapping[str, Any]
) -> EpisodeView:
    """Return a view of an episode from ``samples/*.json`` with pictures of evenly spaced steps, including the last. It
    has no pictures if replaying the actions results in a different return, e.g. with another version of nle. Pictures
    include the scores of the evaluated checkpoint's reward model, unless the checkpoint was deleted.
    """
    figures = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in sample["figures"].items())
    checkpoint, scores = run_dir / "checkpoints" / (sample.get("checkpoint") or "none"), None
    is_online = any(part is not None and part.args.get("online") for part in reward.values())
    if checkpoint.exists() or not is_online:
        with suppress(GroundlingError):
            scores = make_message_scores(reward, device, checkpoint)
    frames = _pictures(sample, scores)
    which = "The held-out episode with the median return" if sample.get("chosen", True) else "A held-out episode"
    notes = [f"{which}: {' · '.join(figures)}"]
    if not frames:
        notes.append("No pictures: with the installed version of nle, the episode cannot be reproduced.")
    rows = [
        [row["message"] or "(none)", f"{row['count']}", signed(row["normalised_reward"])]
        for row in sample["messages"][:_SHOWN_MESSAGES]
    ]
    table = Summary("", ["message", "times", "normalised reward"], rows) if rows else None
    return EpisodeView([(f"Seed {sample['seed']}", False)], frames, notes=notes, pixels=_PIXELS, table=table)


def _pictures(sample: Mapping[str, Any], scores: MessageScores | None) -> list[Frame]:
    actions: list[int] = sample["actions"]
    chosen = {int(step) for step in np.linspace(0, len(actions) - 1, _PICTURES)}
    replayed, args = iter(actions), {**sample["args"], "save_ttyrec_every": 0}
    steps = play_steps(lambda shown: next(replayed), sample["task"], args, sample["seed"], scores)
    frames = []
    with closing(steps):
        for step in islice(steps, len(actions) + 1):  # stop before an action after the last is requested
            if step.step in chosen:
                frames.append(Frame([step.figures_line()], partial(np.asarray, step.screen.image())))
    is_same = step.ended and step.step == len(actions)
    return frames if is_same and math.isclose(step.episode_return, sample["figures"]["return"]) else []
