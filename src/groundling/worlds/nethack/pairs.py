"""Pairs of segments of NetHack for a judge: Motif's phase 0, of which the original has only the data."""

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.envs.nethack import ACTIONS, make_task
from groundling.envs.seeds import training_seed
from groundling.errors import ConfigError, unknown
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import write_atomically
from groundling.io.redaction import shareable
from groundling.judges.preferences.messages import TAILS, MessagePairs
from groundling.judges.preferences.pairs import DESCRIPTION, Format
from groundling.judges.preferences.recording import check_same

Observation = Mapping[str, NDArray[Any]]  # nle's arrays by key
Act = Callable[[Observation], int]  # chooses an index of `groundling.envs.nethack.ACTIONS`
ActForSeed = Callable[[int], Act]  # player of an episode with this seed, deterministic given the seed

_DTYPES = {
    "message": np.uint8,
    "blstats": np.int64,
    "tty_chars": np.uint8,
    "tty_colors": np.int8,
    "rewards": np.float32,
}
_INFO = {"score": 9, "level_num": 12, "experience_level": 18, "turns": 20}  # indices in blstats
KEYS = ("message", "blstats", "rewards")  # recorded at each step
SCREENS = ("tty_chars", "tty_colors")  # more, read by Motif's train_reward; 3,840 bytes a step
_CHARACTER = "mon-hum-neu-mal"  # nle's default character
_MOST_STEPS = 5000  # nle's max_episode_steps


def random_player(seed: int) -> Act:
    rng = np.random.default_rng(seed)
    return lambda observation: int(rng.integers(len(ACTIONS)))


def explorer_player(seed: int) -> Act:
    from groundling.envs.nethack.explorer import Explorer

    return Explorer(seed).act


def record(
    player: ActForSeed,
    folder: str | Path,
    *,
    name: str,
    players: Sequence[Mapping[str, Any]] = (),
    num_pairs: int,
    segment_length: int = 1,
    stride: int = 10,
    task: str = "NetHackScore-v1",
    task_args: Mapping[str, Any] | None = None,
    seed: int = 0,
    keys: Collection[str] = KEYS,
    deterministic: bool = False,
    format: Format = "motif",
    on_segment: Callable[[], None] = lambda: None,
) -> MessagePairs:
    """Let ``player`` play episodes, and write pairs of segments of them as a dataset.

    Of every ``stride`` steps of an episode one segment is kept, which begins at a random step; segments are paired at
    random. Everything follows from ``seed``. The unfinished dataset is in ``FOLDER.recording``: after a kill the same
    call plays the unfinished episode again, and continues.

    Args:
        folder: The dataset's folder; missing, empty, or written by the same call.
        players: Identities of the agents; others cannot continue the recording.
        stride: Steps of which one segment is kept; at least ``segment_length``.
        task: One of `groundling.envs.nethack.TASKS`.
        seed: Seed of the episodes, the players and the pairing.
        keys: Arrays to record: message (always), blstats, tty_chars, tty_colors, rewards. With `SCREENS`,
            info/character is written, too.
        deterministic: The player takes the likeliest actions; part of the description.
        format: "motif" or "parquet".
        on_segment: Called once for each segment, including those recorded before.
    """
    if num_pairs < 1 or not 1 <= segment_length <= stride:
        raise ConfigError(
            f"recording needs num_pairs >= 1 and 1 <= segment_length <= stride, got {num_pairs}, {segment_length} and "
            f"{stride}"
        )
    most = (task_args or {}).get("max_episode_steps", _MOST_STEPS)
    if segment_length > most:
        raise ConfigError(
            f"no episode is as long as a segment of segment_length={segment_length} steps, with "
            f"max_episode_steps={most}: record shorter segments, or raise the task's max_episode_steps"
        )
    kept = sorted({"message", *keys})
    for key in kept:
        if key not in _DTYPES:
            raise ConfigError(unknown("key of a recording", key, _DTYPES))
    description = {
        "player": name,
        "players": list(players),
        "task": task,
        "task_args": dict(task_args or {}),
        "num_pairs": num_pairs,
        "segment_length": segment_length,
        "stride": stride,
        "seed": seed,
        "keys": kept,
        "deterministic": deterministic,
        "format": format,
    }
    recording = _Recording(Path(folder), description)
    if not recording.is_written:
        recording.begin()
        for _ in range(recording.segment):
            on_segment()
        env = make_task(task, **dict(task_args or {}))
        try:
            while not recording.is_complete:
                _play(env, player, recording, on_segment)
        finally:
            env.close()
        recording.write(format)
    return MessagePairs.open(Path(folder))


def _play(env: Any, player: ActForSeed, recording: "_Recording", on_segment: Callable[[], None]) -> None:
    length, stride = recording.description["segment_length"], recording.description["stride"]
    seed = training_seed(recording.description["seed"], 0, recording.episode)
    act, rng = player(seed), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    reward, done, step, begin = 0.0, False, 0, int(rng.integers(stride - length + 1))
    while not done and not recording.is_complete:
        place = step - begin
        if 0 <= place < length:
            recording.keep(place, {**observation, "rewards": reward})
            if place == length - 1:
                recording.finish_segment(observation["blstats"], step)
                on_segment()
                begin = (step // stride + 1) * stride + int(rng.integers(stride - length + 1))
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        done, step = terminated or truncated, step + 1
    recording.finish_episode()


class _Recording:
    """Arrays of an unfinished dataset, in which each segment has a randomly drawn place."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        self.folder, self.description = folder, shareable(description)
        self.partial = folder.with_name(folder.name + ".recording")
        self.episode = self.segment = 0
        count, length = description["num_pairs"], description["segment_length"]
        self._places = np.random.default_rng(description["seed"]).permutation(2 * count)
        self._shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            key: ((2 * count, length, *TAILS[key]), _DTYPES[key]) for key in description["keys"]
        }
        self._shapes |= {f"info-{key}": ((2 * count,), np.int64) for key in (*_INFO, "steps")}
        self._arrays: dict[str, NDArray[Any]] = {}

    @property
    def is_complete(self) -> bool:
        return self.segment == len(self._places)

    @property
    def is_written(self) -> bool:
        """True if the dataset is complete; raise `ConfigError` if the folder holds something else."""
        if not self.folder.exists() or (self.folder.is_dir() and not any(self.folder.iterdir())):
            return False
        path = self.folder / DESCRIPTION
        if not path.is_file():
            state = self._read_state()
            if state is not None and state["segment"] == len(self._places):
                return False  # killed between the dataset and its description
            raise ConfigError(f"{self.folder} holds something else: name a new folder for the dataset")
        check_same(self.folder, self.description)
        shutil.rmtree(self.partial, ignore_errors=True)
        return True

    def begin(self) -> None:
        """Make the arrays, or open those of an interrupted recording."""
        state = self._read_state()
        mode = "w+" if state is None else "r+"
        if state is None:
            shutil.rmtree(self.partial, ignore_errors=True)
            self.partial.mkdir(parents=True)
            text = json.dumps(self.description, indent=1) + "\n"
            write_atomically(self.partial / DESCRIPTION, text)
        else:
            check_same(self.partial, self.description)
            self.episode, self.segment = state["episode"], state["segment"]
        for key, (shape, dtype) in self._shapes.items():
            self._arrays[key] = np.lib.format.open_memmap(
                self.partial / f"{key}.npy", mode=mode, dtype=dtype, shape=shape
            )

    def keep(self, place: int, step: Mapping[str, Any]) -> None:
        for key in self.description["keys"]:
            self._arrays[key][self._places[self.segment], place] = step[key]

    def finish_segment(self, blstats: NDArray[Any], steps: int) -> None:
        row = self._places[self.segment]
        for key, index in _INFO.items():
            self._arrays[f"info-{key}"][row] = blstats[index]
        self._arrays["info-steps"][row] = steps
        self.segment += 1

    def finish_episode(self) -> None:
        self.episode += 1
        for array in self._arrays.values():
            array.flush()  # type: ignore[attr-defined]
        state = {"episode": self.episode, "segment": self.segment}
        write_atomically(self.partial / "state.json", json.dumps(state) + "\n")

    def write(self, format: Format) -> None:
        count = len(self._places) // 2
        shaped = {key: array.reshape(count, 2, *array.shape[1:]) for key, array in self._arrays.items()}
        data = {key: array for key, array in shaped.items() if not key.startswith("info-")}
        info = {key.removeprefix("info-"): array for key, array in shaped.items() if key not in data}
        if format == "motif" and data.keys() >= set(SCREENS):
            character = str(self.description["task_args"].get("character", _CHARACTER))
            info["character"] = np.full((count, 2), character)
        if not self.folder.exists() or not any(self.folder.iterdir()):
            MessagePairs.create(self.folder, data, info, format)
        write_atomically(self.folder / DESCRIPTION, json.dumps(self.description, indent=1) + "\n")
        shutil.rmtree(self.partial)

    def _read_state(self) -> dict[str, int] | None:
        path = self.partial / "state.json"
        if not path.is_file():
            return None
        try:
            state = read_object(path, SETTINGS)
            return {name: int(state[name]) for name in ("episode", "segment")}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error!r}): delete {self.partial} to record it again"
            ) from error
