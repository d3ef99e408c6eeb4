"""Rollouts from a dataset of transitions, for cloning."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from annotated_types import MinLen
from pydantic import BaseModel, FiniteFloat, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError, RunError
from groundling.io.documents import DocumentError, read_parquet
from groundling.policies.policy import Policy, Turn
from groundling.worlds.episode import Episode
from groundling.worlds.text.dataset import files_of, schema
from groundling.worlds.world import Collector


class _Row(BaseModel):
    """The columns of a transition that rollouts need."""

    goal: str
    descriptions: Annotated[list[list[str]], MinLen(1)]
    past_actions: list[str]
    actions: list[str]
    action: str
    action_index: int | None
    reward: FiniteFloat
    done: bool
    log_prob: float | None
    tools: list[str] | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.past_actions) != len(self.descriptions) - 1:
            raise ValueError("past_actions must have one element fewer than descriptions")
        if self.actions and (self.action_index, self.action) not in [*enumerate(self.actions)]:
            raise ValueError(f"action_index must be the index of action, {self.action!r:.80}, in actions")
        return self


_COLUMNS = tuple(_Row.model_fields)
_ROWS = TypeAdapter(list[_Row])


class Demonstrations(Collector):
    """Rollouts from a split of a dataset written by `groundling collect`, reshuffled in each epoch.

    Args:
        num_envs: Number of transitions per rollout step, over all processes; this process reads ``local_rows``.
        actions: The admissible actions, or None if the envs list them at each step.
        history: Maximum number of observations that the policy sees. If None, it sees the whole episode, whose rows
            are then kept in sequence so that they are read as one text.

    Raises:
        ConfigError: The dataset is missing, or is incompatible with the actions or the history.
        RunError: The dataset's files cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        num_envs: int,
        local_rows: slice,
        actions: Sequence[str] | None,
        history: int | None,
        seed: int,
        num_steps: int = 1,
        split: str = "train",
    ) -> None:
        self.num_envs = local_rows.stop - local_rows.start
        self._total, self._local_rows = num_envs, local_rows
        self._history, self._seed, self._num_steps = history, seed, num_steps
        self._rows = _read(folder, split)
        self._folder = folder
        self._position = 0  # number of transitions returned so far
        self._by_pass = False
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))  # an epoch, and its order (num_rows,)
        ended = self._rows["done"].to_numpy()
        self._episodes = ended.cumsum() - ended  # (num_rows,): each row's episode number
        self._starts = _check_episodes(folder, self._rows) if history is None else None
        self._lists = self._rows["actions"] if actions is None else None
        self._check(actions)

    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, list[Episode]]:
        """Return the next ``num_steps`` steps of the dataset; the policy is not used."""
        rollout = self.rollout(self._num_steps)
        on_step(rollout.num_transitions)
        return rollout, []

    def rollout(self, num_steps: int) -> Rollout:
        """Return the next transitions, ``num_envs`` per step. Values and missing log-probabilities are 0. After
        `in_passes`, steps beyond the end of a pass repeat its last transition and are masked.
        """
        full = end = self._position + num_steps * self._total
        if self._by_pass:
            end = min(end, (self._position // self._rows.num_rows + 1) * self._rows.num_rows)
        indices, mask = self._next(num_steps, end)
        rows: list[dict[str, Any]] = self._rows.take(indices).to_pylist()
        self._position = end

        def column(name: str, dtype: torch.dtype) -> Tensor:
            values = [row[name] or 0 for row in rows]
            return torch.tensor(values, dtype=dtype).view(num_steps, self.num_envs)

        return Rollout(
            observations=self._observations(indices, rows),
            actions=column("action_index", torch.int64),
            log_probs=column("log_prob", torch.float32),
            values=torch.zeros(num_steps, self.num_envs),
            rewards=column("reward", torch.float32),
            dones=column("done", torch.bool),
            last_values=torch.zeros(self.num_envs),
            last_observations=[],
            mask=None if end == full else mask.view(num_steps, self.num_envs),
        )

    def in_passes(self, epochs: int) -> tuple[int, int]:
        """See `Collector.in_passes`; a step is a transition."""
        self._by_pass = True
        rows = int(self._rows.num_rows)
        return epochs * rows, epochs * math.ceil(rows / (self._num_steps * self._total))

    def state_dict(self) -> list[dict[str, Any]]:
        return [{"position": self._position, "rows": self._rows.num_rows}] * self.num_envs

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        state = states[0]
        if state["rows"] != self._rows.num_rows:
            raise RunError(
                f"{self._folder} has {self._rows.num_rows} transitions, but had {state['rows']} when the run started: "
                "restore the original dataset, or set run_dir to a new folder to start again"
            )
        self._position = state["position"]

    def _next(self, num_steps: int, end: int) -> tuple[list[int], Tensor]:
        """Return this process's rows of the next steps, and a mask (num_steps * num_envs,), True before ``end``."""
        total = self._rows.num_rows
        indices = []
        steps = range(self._position, self._position + num_steps * self._total, self._total)
        positions = [p for start in steps for p in range(start, start + self._total)[self._local_rows]]
        for position in positions:
            epoch, place = divmod(min(position, end - 1), total)
            if self._order[0] != epoch:
                generator = torch.Generator().manual_seed((self._seed << 20) + epoch)
                order = torch.randperm(len(self._starts or self._rows), generator=generator)
                if self._starts is not None:  # whole episodes
                    ends = [*self._starts[1:], total]
                    order = torch.cat([torch.arange(self._starts[i], ends[i]) for i in order.tolist()])
                self._order = epoch, order
            indices.append(int(self._order[1][place]))
        return indices, torch.tensor(positions) < end

    def _observations(self, indices: Sequence[int], rows: Sequence[dict[str, Any]]) -> list[Any]:
        """Return the rows' observations; if actions are free text, return turns with actions but no tokens."""
        observations = [
            TextObservation(
                goal=row["goal"],
                descriptions=tuple(map(tuple, row["descriptions"])),
                past_actions=tuple(row["past_actions"]),
                actions=tuple(row["actions"]),
                raw={"mission": row["goal"]},
                past_choices=self._past_choices(index, len(row["past_actions"])),
                episode=int(self._episodes[index]),
                tools=tuple(row["tools"] or ()),
            ).recent(self._history)
            for index, row in zip(indices, rows, strict=True)
        ]
        return [
            seen if seen.actions else Turn(seen, (), (), action=row["action"])
            for seen, row in zip(observations, rows, strict=True)
        ]

    def _past_choices(self, index: int, count: int) -> tuple[tuple[str, ...], ...]:
        """Return the admissible actions in the episode's previous rows, or nothing if they never change."""
        lists = [] if self._lists is None or index < count else self._lists.slice(index - count, count).to_pylist()
        return tuple(map(tuple, lists))

    def _check(self, actions: Sequence[str] | None) -> None:
        import pyarrow.compute as pc

        longest = pc.max(pc.list_value_length(self._rows["descriptions"])).as_py()
        if self._history is not None and longest < self._history:
            raise ConfigError(
                f"{self._folder} has at most {longest} observations per step: set world.history={longest}, or collect "
                f"the dataset again with world.history={self._history}"
            )
        if actions is None and not pc.min(pc.list_value_length(self._rows["actions"])).as_py():
            raise ConfigError(f"{self._folder} has rows without admissible actions: collect it again from world.env")
        if actions is None:
            return
        for row, dataset_actions in enumerate(self._rows["actions"].to_pylist(), start=1):
            if dataset_actions != list(actions):
                raise ConfigError(
                    f"{self._folder}, row {row}, has the actions {', '.join(dataset_actions)}, but "
                    f"world.actions or world.language selects {', '.join(actions)}: select the dataset's actions"
                )


def _read(folder: Path, split: str) -> Any:
    """Read the columns that rollouts need from a split, as a ``pyarrow.Table``."""
    wanted = schema()  # raises if pyarrow is missing
    import pyarrow as pa

    files = files_of(folder, split)
    if not files:
        raise ConfigError(
            f"world.dataset={folder} has no data/{split}-*.parquet: use a folder written by `groundling collect`"
        )
    tables = []
    for path in files:
        before = 0  # rows that have been checked
        try:
            table = read_parquet(path)
            if "tools" not in table.column_names:  # written before 30 November 2026
                table = table.append_column("tools", pa.nulls(len(table), wanted.field("tools").type))
            table = table.select(_COLUMNS).cast(pa.schema([wanted.field(name) for name in _COLUMNS]))
            for batch in table.to_batches(max_chunksize=1024):
                _ROWS.validate_python(batch.to_pylist())
                before += len(batch)
            tables.append(table)
        except ValidationError as error:
            wrong = error.errors()[0]
            row, *column = wrong["loc"]
            raise ConfigError(
                f"{path}, row {before + int(row) + 1}: {'.'.join(map(str, column[:1]))} {wrong['msg']}, got "
                f"{wrong['input']!r:.80}; expected the format of `groundling collect`"
            ) from error
        except KeyError as error:
            raise ConfigError(f"{path}: {error.args[0]}; expected the columns {', '.join(_COLUMNS)}") from error
        except (pa.ArrowException, DocumentError) as error:
            raise RunError(f"cannot read {path}: {error}") from error
    rows = pa.concat_tables(tables)
    if not rows.num_rows:
        raise ConfigError(f"{folder} has no transitions: collect more episodes, or use an agent that succeeds")
    return rows


def _check_episodes(folder: Path, rows: Any) -> list[int]:
    """Return each episode's first row; raise `ConfigError` unless the rows are complete episodes in sequence."""
    import pyarrow.compute as pc

    lengths = pc.list_value_length(rows["descriptions"]).to_pylist()
    ended = [True, *rows["done"].to_pylist()[:-1]]
    for index, (count, begins) in enumerate(zip(lengths, ended, strict=True)):
        if count != (1 if begins else lengths[index - 1] + 1):
            raise ConfigError(
                f"row {index + 1} of {folder} has {count} observations, but its episode has "
                f"{1 if begins else lengths[index - 1] + 1} so far: collect the dataset again with world.history=null"
            )
    return [index for index, begins in enumerate(ended) if begins]
