"""Pairs of NetHack segments for a judge, collected as in Motif, which released the data but not the code."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.envs.nethack import ACTIONS, make_task
from groundling.envs.seeds import training_seed
from groundling.errors import ConfigError
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import sync, write_atomically
from groundling.io.redaction import shareable
from groundling.judges.preferences import parquet
from groundling.judges.preferences.messages import TAILS, MessagePairs
from groundling.judges.preferences.pairs import DESCRIPTION, Format
from groundling.judges.preferences.recording import check_same

Observation = Mapping[str, NDArray[Any]]  # nle's arrays by key
Act = Callable[[Observation], int]  # chooses an index of `groundling.envs.nethack.ACTIONS`
ActForSeed = Callable[[int], Act]  # returns a deterministic player for the episode with this seed

_KEYS = {"blstats": np.int64, "message": np.uint8, "rewards": np.float32}  # recorded at each step
_SCREENS = {"tty_chars": np.uint8, "tty_colors": np.int8}  # optional, for Motif's train_reward; 3,840 bytes a step
_INFO = {"score": 9, "level_num": 12, "experience_level": 18, "turns": 20}  # indices in blstats
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
    screens: bool = False,
    deterministic: bool = False,
    format: Format = "motif",
    on_segment: Callable[[], None] = lambda: None,
) -> MessagePairs:
    """Play episodes with ``player``, and write pairs of their segments as a dataset.

    One segment is kept per ``stride`` steps of an episode, starting at a random step. Segments are paired at random,
    and ``seed`` determines all random choices. The unfinished dataset is in ``FOLDER.recording``; if the process is
    killed, repeating the call replays the unfinished episode and continues.

    Args:
        folder: The dataset's folder, which must be missing, empty, or written by an identical call.
        players: Identities of the agents. A recording can only be continued with the same agents.
        stride: Number of steps per kept segment; at least ``segment_length``.
        screens: Record the terminal and info/character in addition to message, blstats and rewards.
        on_segment: Called once for each segment, including those recorded earlier.
    """
    if num_pairs < 1 or not 1 <= segment_length <= stride:
        sizes = f"{num_pairs}, {segment_length} and {stride}"
        raise ConfigError(f"recording needs num_pairs >= 1 and 1 <= segment_length <= stride, got {sizes}")
    args = dict(task_args or {})
    most = args.get("max_episode_steps", _MOST_STEPS)
    if segment_length > most:
        raise ConfigError(
            f"segment_length={segment_length} is more than the task's max_episode_steps={most}: record shorter "
            "segments, or raise max_episode_steps"
        )
    description = {
        "player": name,
        "players": list(players),
        "task": task,
        "task_args": args,
        "num_pairs": num_pairs,
        "segment_length": segment_length,
        "stride": stride,
        "seed": seed,
        "keys": [*_KEYS, *(_SCREENS if screens else ())],
        "deterministic": deterministic,
        "format": format,
    }
    recording = _Recording(Path(folder), description)
    if not recording.is_written:
        recording.begin()
        for _ in range(recording.segment):
            on_segment()
        with closing(make_task(task, **args)) as env:
            while not recording.is_complete:
                _play(env, player, recording, on_segment)
        recording.write(format)
    if format == "motif":
        return MessagePairs.open(Path(folder))
    return MessagePairs.of_columns(Path(folder), *parquet.read(Path(folder)))


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
    """The arrays of an unfinished dataset, in which segments are stored at random positions."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        self.folder, self.description = folder, shareable(description)
        self._partial = folder.with_name(folder.name + ".recording")
        self._state = self._partial / "state.json"
        self._places = np.random.default_rng(description["seed"]).permutation(2 * description["num_pairs"])
        self._arrays: dict[str, NDArray[Any]] = {}
        self.episode = self.segment = 0
        self.is_written = folder.is_file() or (folder.exists() and any(folder.iterdir()))
        if self.is_written:
            check_same(folder, self.description)
            shutil.rmtree(self._partial, ignore_errors=True)

    @property
    def is_complete(self) -> bool:
        return self.segment == len(self._places)

    def begin(self) -> None:
        """Create the arrays, or open those of an interrupted recording."""
        resumes = self._state.is_file()
        if resumes:
            check_same(self._partial, self.description)
            state = read_object(self._state, SETTINGS)
            self.episode, self.segment = int(state["episode"]), int(state["segment"])
        else:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
            self._describe(self._partial)
        count, dtypes = len(self._places), {**_KEYS, **_SCREENS}
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            key: ((count, self.description["segment_length"], *TAILS[key]), dtypes[key])
            for key in self.description["keys"]
        }
        shapes |= {f"info-{key}": ((count,), np.int64) for key in (*_INFO, "steps")}
        for key, (shape, dtype) in shapes.items():
            path = self._partial / f"{key}.npy"
            self._arrays[key] = np.lib.format.open_memmap(path, "r+" if resumes else "w+", dtype, shape)

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
        write_atomically(self._state, json.dumps({"episode": self.episode, "segment": self.segment}) + "\n")

    def write(self, format: Format) -> None:
        """Write the dataset with its description atomically, and delete the unfinished one."""
        shaped = {key: array.reshape(-1, 2, *array.shape[1:]) for key, array in self._arrays.items()}
        data = {key: array for key, array in shaped.items() if not key.startswith("info-")}
        info = {key.removeprefix("info-"): array for key, array in shaped.items() if key not in data}
        if format == "motif" and data.keys() >= _SCREENS.keys():
            character = str(self.description["task_args"].get("character", _CHARACTER))
            info["character"] = np.full(info["steps"].shape, character)
        whole = self._partial / "pairs"
        shutil.rmtree(whole, ignore_errors=True)  # left if a process was killed at this point
        MessagePairs.create(whole, data, info, format)
        self._describe(whole)
        whole.rename(self.folder)
        sync(self.folder.parent)
        shutil.rmtree(self._partial)

    def _describe(self, folder: Path) -> None:
        write_atomically(folder / DESCRIPTION, json.dumps(self.description, indent=1) + "\n")
