"""Datasets of an agent's transitions in Parquet files, which Hugging Face's ``load_dataset`` can open."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.envs.text_episode import TextEpisode
from groundling.errors import ConfigError, RunError, importing
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import is_unused, replace_file, write_atomically
from groundling.prompts import PromptReader
from groundling.worlds.protocols import Collected
from groundling.worlds.text.episodes import Transition, play_training_episodes
from groundling.worlds.world import Demonstrator

if TYPE_CHECKING:
    import pyarrow

DESCRIPTION = "collection.json"  # describes the agent and the world
_CARD = """---
configs:
- config_name: default
  data_files:
{splits}
---
# Transitions of {agent} in {env}

Written by `groundling collect`. Each row is one step of an episode. Open the dataset with
`datasets.load_dataset(FOLDER)`, or clone its actions with `groundling train glam/bc world.dataset=FOLDER`. The agent
and the world are described in `{description}`.
"""


def schema() -> "pyarrow.Schema":
    """Return the columns of a dataset; raise `ConfigError` if pyarrow is not installed."""
    with importing("pyarrow", "data"):
        import pyarrow as pa
    texts = pa.list_(pa.string())
    return pa.schema(
        {
            "episode": pa.int64(),
            "step": pa.int32(),
            "seed": pa.int64(),
            "task": pa.string(),
            "goal": pa.string(),
            "descriptions": pa.list_(texts),  # the recent observations, oldest first
            "past_actions": texts,
            "actions": texts,  # admissible actions
            "prompt": pa.string(),
            "action": pa.string(),
            "action_index": pa.int32(),  # null if actions are free text
            "reward": pa.float32(),  # from the env
            "done": pa.bool_(),
            "success": pa.bool_(),  # of the whole episode
            "log_prob": pa.float32(),  # of the action; null for the expert
            "tools": texts,  # JSON schemas
        }
    )


def _begin(folder: Path, description: dict[str, Any], splits: Sequence[str]) -> None:
    """Write the description of a new dataset; raise `ConfigError` if the folder contains anything else."""
    schema()  # raises if pyarrow is missing
    if folder.is_file() or (folder.exists() and not is_unused(folder) and not (folder / DESCRIPTION).exists()):
        raise ConfigError(f"{folder} is a file or contains other files: use a new folder for the dataset")
    if count_episodes(folder):  # without episodes, the description may change
        there, wanted = read_description(folder), json.loads(json.dumps(description))
        different = ", ".join(
            f"{key}={there.get(key)!r} (now {wanted.get(key)!r})"
            for key in sorted({*there, *wanted})
            if there.get(key) != wanted.get(key)
        )
        if different:
            raise ConfigError(
                f"{folder} contains a different dataset ({different}): use a new folder or repeat the original command"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    files = "\n".join(f"  - split: {split}\n    path: data/{split}-*.parquet" for split in splits)
    agent, env = description["agent"], description["world.env"]
    card = _CARD.format(splits=files, agent=agent, env=env, description=DESCRIPTION)
    # Written first, since a folder without it is not recognised as a dataset.
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1, ensure_ascii=False) + "\n")
    write_atomically(folder / "README.md", card)
    (folder / "data").mkdir(exist_ok=True)


def _append(folder: Path, first: int, last: int, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Write the transitions of episodes by split; the first split's file is written last and marks them complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split in reversed(rows):
        table = pa.Table.from_pylist(rows[split], schema=schema())
        path = folder / "data" / f"{split}-{first:08d}-{last:08d}.parquet"
        for stale in path.parent.glob(f"*{split}-{first:08d}-*"):  # left if a process was killed at this point
            stale.unlink()
        replace_file(path, partial(pq.write_table, table, compression="zstd"))


def files_of(folder: Path, split: str) -> list[Path]:
    return sorted((folder / "data").glob(f"{split}-*.parquet"))


def count_episodes(folder: Path) -> int:
    """Return the number of episodes in a dataset, including those held out for validation and dropped ones."""
    files = files_of(folder, "train")
    return int(files[-1].stem.rpartition("-")[2]) + 1 if files else 0


def count_transitions(folder: Path, split: str = "train") -> int:
    """Return the number of rows in a dataset's files.

    Raises:
        ConfigError: pyarrow is not installed.
        RunError: A file is corrupt.
    """
    schema()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(pq.ParquetFile(path).metadata.num_rows for path in files_of(folder, split))
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{folder} has a file that cannot be read: {error}: collect into a new folder") from error


def check_env(folder: Path, env: str) -> None:
    """Raise `ConfigError` if a dataset's description specifies an env other than ``env``."""
    played = read_description(folder).get("world.env") if (folder / DESCRIPTION).exists() else None
    if played not in (None, env):
        raise ConfigError(
            f"{folder} has episodes of {played}, but world.env={env}: set world.env={played}; `groundling evaluate "
            f"RUN world.env={env}` can then test the agent in the other env"
        )


def read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        return read_object(path, SETTINGS)
    except ValueError as error:
        raise RunError(f"{path} cannot be read ({error}): collect into a new folder") from error


_EPISODES_PER_FILE = 256
_Rows = list[dict[str, Any]]  # The transitions of an episode


def collect_dataset(
    player: Demonstrator,
    num_episodes: int,
    output: Path,
    only_success: bool = False,
    validation_fraction: float = 0.0,
    on_episode: Callable[[], None] = lambda: None,
) -> Collected:
    """Play the first ``num_episodes`` training episodes, write their transitions to ``output``, and return the size of
    the new data. Files contain up to 256 episodes; on Ctrl-C, finished episodes are written first. Repeating the call,
    even with a larger ``num_episodes``, continues after the last file. An evenly spaced ``validation_fraction`` of the
    episodes forms the ``validation`` split. ``on_episode`` is also called for episodes from earlier calls.
    """
    splits = ("train", "validation") if validation_fraction else ("train",)
    description = {
        "agent": player.name,
        "run": player.run,
        "checkpoint": player.checkpoint,
        "only_success": only_success,
        "validation_fraction": validation_fraction,
        **{key: value for key, value in player.settings.items() if key != "run_dir"},
    }
    _begin(output, description, splits)
    total, first = Collected(), count_episodes(output)
    for _ in range(first):
        on_episode()
    while first < num_episodes:
        count = min(_EPISODES_PER_FILE, num_episodes - first)
        finished: dict[int, _Rows] = {}
        try:
            seed = player.world.training_seed(1, first)
            for number, episode, steps in play_training_episodes(player, first, count, seed):
                finished[number] = _rows_of(player, number, episode, steps)
                on_episode()
        finally:  # also on Ctrl-C
            rows: dict[str, _Rows] = {split: [] for split in splits}
            last = first
            while last in finished:  # up to the first unfinished episode
                played = finished[last]
                if played[0]["success"] or not only_success:
                    held_out = int((last + 1) * validation_fraction) > int(last * validation_fraction)
                    rows["validation" if held_out else "train"] += played
                    total.kept += 1
                    total.transitions += len(played)
                last += 1
            if last > first:
                _append(output, first, last - 1, rows)
                total.episodes += last - first
        first += count
    return total


def _rows_of(player: Demonstrator, number: int, episode: TextEpisode, steps: Sequence[Transition]) -> _Rows:
    """Return an episode's transitions as rows of the dataset."""
    observations = [one.observation for one in steps]
    prompts = None if player.policy is None else player.policy.prompts(observations)
    if prompts is None:
        prompts = list(map(PromptReader("glam", player.world.config.language), observations))
    about = {"episode": number, "seed": episode.seed, "task": episode.task, "success": episode.success}
    return [
        about
        | {
            "step": step,
            "goal": one.observation.goal,
            "descriptions": one.observation.descriptions,
            "past_actions": one.observation.past_actions,
            "actions": one.observation.actions,
            "prompt": prompt,
            "action": one.observation.action_text(one.action),
            "action_index": None if isinstance(one.action, str) else one.action,
            "reward": one.reward,
            "done": one.done,
            "log_prob": one.log_prob,
            "tools": one.observation.tools,
        }
        for step, (one, prompt) in enumerate(zip(steps, prompts, strict=True))
    ]
