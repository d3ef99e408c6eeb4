"""Many of BabyAI's levels stepped together: their grids in one array, what is seen and said by tables.

Everything is as if each env took its own step. Minigrid's own objects stay true: they hold each change at once, for
whoever looks at an env (BabyAI's bot, a picture, the verifier of a mission). Beside them, an array holds all grids in
the codes of `sight`. Of a step,

- turning and walking are arithmetic on arrays;
- things are picked up, dropped and toggled by Minigrid's rules, env by env, where that is possible;
- a mission is verified by Minigrid where its verdict or its memory may change: at an episode's first step, where the
  hands were used, and where the agent faces a cell that the mission says to go to;
- views and sentences come from look-up tables.

A reset is the env's own, and is taken up into the arrays.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing
from minigrid.core.actions import Actions
from minigrid.core.constants import DIR_TO_VEC
from minigrid.core.world_object import WorldObj
from minigrid.envs.babyai.core import verifier
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

from groundling.envs.babyai_text.grounding import Watch, clauses, descriptions
from groundling.envs.babyai_text.levels import LocalLevel
from groundling.envs.babyai_text.sentences import tell
from groundling.envs.babyai_text.sight import CODED, EMPTY, ENCODED, MARGIN, OUTSIDE, VIEW, code_of, views
from groundling.envs.babyai_text.text import BabyAIText
from groundling.envs.text_env import ReadStep, TextStep
from groundling.envs.workers import LocalEnvs

FEWEST = 6
"""So many envs or more are stepped together; fewer are as fast by themselves."""

_TURNS = np.array([{Actions.left: -1, Actions.right: 1}.get(action, 0) for action in Actions])
"""By action, how many quarters the agent turns."""
_ENTERED = np.array([thing is None or thing.can_overlap() for thing in CODED])
"""By code, whether the agent may walk there."""
_IS_PICKED = np.array([thing is not None and thing.can_pickup() for thing in CODED])
_IS_TOGGLED = np.array([thing is not None and thing.type in ("door", "box") for thing in CODED])
_IS_THING = np.array([thing is not None and thing.type != "wall" for thing in CODED])
"""By code, whether something stands there that is no wall."""


def step_together(envs: Sequence[gymnasium.Env[Any, Any]]) -> bool:
    """Whether `BatchedLevels` steps these envs: enough of them, all BabyAI's own levels or GLAM's, with the usual view.

    Not so are levels of one's own, whose rules may be others, wrappers of one's own, and missions that end when the
    agent says so (BABYAI_DONE_ACTIONS).
    """
    return len(envs) >= FEWEST and not verifier.use_done_actions and all(map(_is_plain, envs))


def _is_plain(env: gymnasium.Env[Any, Any]) -> bool:
    level: Any = env.unwrapped
    wrappers = [type(wrapper) for wrapper in _wrappers(env)]
    is_known = type(level).__module__.startswith("minigrid.envs.babyai.") and isinstance(level, RoomGridLevel)
    return (
        (is_known or type(level) is LocalLevel)
        and wrappers.count(BabyAIText) == 1
        and {*wrappers} <= {BabyAIText, OrderEnforcing}
        and all(one.describe_walls for one in _wrappers(env) if isinstance(one, BabyAIText))
        and level.agent_view_size == VIEW
        and level.render_mode != "human"
    )


class BatchedLevels(LocalEnvs):
    """Envs for which `step_together` holds; the first step that is received takes all that were sent.

    Args:
        envs: Of one language and compat.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(envs)
        self._levels: list[Any] = [env.unwrapped for env in envs]
        self._texts = [one for env in envs for one in _wrappers(env) if isinstance(one, BabyAIText)]
        self._missions = [""] * len(envs)  # as they are told
        # What infos hold of an episode's family of tasks.
        self._tasks: list[dict[str, str]] = [{} for _ in envs]
        self._watches: list[Watch | None] = [None] * len(envs)
        self._sent: dict[int, int] = {}
        self._stepped: dict[int, ReadStep] = {}
        self._begun = np.zeros(len(envs), dtype=bool)
        self._cells = np.zeros(len(envs), dtype=int)  # where the agents stand in the boards
        self._directions = np.zeros(len(envs), dtype=int)
        self._carried = np.full(len(envs), EMPTY, dtype=np.uint8)
        self._steps_left = np.zeros(len(envs), dtype=int)
        self._new = np.zeros(len(envs), dtype=bool)  # whether no step was taken yet
        self._watched = np.zeros(len(envs), dtype=bool)  # whether nothing was dealt with yet
        self._moved = np.zeros(
            len(envs), dtype=bool
        )  # whether the verifiers do not know yet where things are now
        self._lay_out(max(level.width for level in self._levels), max(level.height for level in self._levels))

    def send(self, env: int, command: str, value: Any) -> None:
        if command == "step":
            self._sent[env] = value
        else:
            super().send(env, command, value)

    def receive(self, env: int) -> Any:
        """As `LocalEnvs.receive`; of a step, a `ReadStep`."""
        if env in self._sent:
            self._step()
        if (stepped := self._stepped.pop(env, None)) is not None:
            return stepped
        returned = super().receive(env)
        self._missions[env] = returned[0]["mission"]
        self._tasks[env] = {name: task for name, task in returned[1].items() if name == "task"}
        self._take_up(env)
        return returned

    def _lay_out(self, width: int, height: int) -> None:
        """Make boards for grids of that size."""
        size = (len(self._levels), height + 2 * MARGIN, width + 2 * MARGIN)
        self._boards = np.full(size, OUTSIDE, dtype=np.uint8)
        self._codes = self._boards.reshape(-1)  # the same, cell by cell
        self._sought = np.zeros(size, dtype=bool)  # the cells that missions say to go to
        self._steps = np.array(DIR_TO_VEC) @ (1, size[2])  # from a cell to the next, by direction
        for env in np.flatnonzero(self._begun).tolist():
            self._take_up(env)

    def _take_up(self, env: int) -> None:
        """Read off an env where it stands."""
        level, watch = self._levels[env], self._texts[env].watch
        self._watches[env] = watch
        (width, height), (_, rows, columns) = (level.grid.width, level.grid.height), self._boards.shape
        self._begun[env] = True
        if width > columns - 2 * MARGIN or height > rows - 2 * MARGIN:
            self._lay_out(max(width, columns - 2 * MARGIN), max(height, rows - 2 * MARGIN))
            return
        board = self._boards[env]
        board[:] = OUTSIDE
        codes = np.array([EMPTY if thing is None else _code(thing) for thing in level.grid.grid]).reshape(
            height, width
        )
        board[MARGIN : MARGIN + height, MARGIN : MARGIN + width] = codes
        x, y = level.agent_pos
        self._cells[env] = (env * rows + MARGIN + y) * columns + MARGIN + x
        self._directions[env] = level.agent_dir
        self._carried[env] = _code(level.carrying)
        self._steps_left[env] = level.max_steps - level.step_count
        self._watched[env] = watch is not None and bool(watch.actions)
        self._new[env] = level.step_count == 0
        self._moved[env] = level.carrying is not None
        self._seek(env)

    def _seek(self, env: int) -> None:
        """Mark the cells in which an agent is where its mission, or a part of it, says to go."""
        board = self._sought[env]
        board[:] = False
        for clause in clauses(self._levels[env].instrs):
            if isinstance(clause, verifier.GoToInstr):
                for x, y in clause.desc.obj_poss:
                    board[MARGIN + y, MARGIN + x] = True

    def _step(self) -> None:
        """Take all steps that were sent."""
        taken = [*self._sent.values()]
        envs, actions = np.array([*self._sent]), np.array(taken)  # (n,)
        self._sent.clear()
        self._move(envs, actions)
        faced = self._cells[envs] + self._steps[self._directions[envs]]
        used = self._hands_matter(envs, actions, self._codes[faced])
        for i in np.flatnonzero(used).tolist():
            self._use_hands(int(envs[i]), taken[i], int(faced[i]))
        paid, terminated = [0.0] * len(taken), [False] * len(taken)
        for i in np.flatnonzero(used | self._sought.reshape(-1)[faced] | self._new[envs]).tolist():
            level = self._levels[envs[i]]
            verdict = level.instrs.verify(taken[i])
            terminated[i] = verdict in ("success", "failure")
            paid[i] = level._reward() if verdict == "success" else 0.0
        self._new[envs] = False
        for i in np.flatnonzero(self._watched[envs] & (used | _IS_THING[self._codes[faced]])).tolist():
            self._watch(int(envs[i]), taken[i])
        self._steps_left[envs] -= 1
        self._show(envs, paid, terminated, (self._steps_left[envs] <= 0).tolist())

    def _show(
        self, envs: np.ndarray, rewards: list[float], terminated: list[bool], truncated: list[bool]
    ) -> None:
        """Make what the steps return."""
        cells, directions, texts = self._cells[envs], self._directions[envs], self._texts[0]
        seen = views(self._codes, cells, directions, self._carried[envs], self._boards.shape[2])
        for env, image, direction, reward, has_ended, is_cut_off, sentences in zip(
            envs.tolist(),
            ENCODED.take(seen, axis=0).reshape(-1, VIEW, VIEW, 3),
            directions.tolist(),
            rewards,
            terminated,
            truncated,
            tell(seen, texts.language, texts.compat),
            strict=True,
        ):
            mission, watch = self._missions[env], self._watches[env]
            observation = {"image": image, "direction": direction, "mission": mission}
            info: dict[str, Any] = {"descriptions": sentences, **self._tasks[env]}
            if watch is not None:
                info["first_interaction"] = watch.interaction
            shown = TextStep(mission, tuple(sentences), None)
            self._stepped[env] = ReadStep(observation, reward, has_ended, is_cut_off, info, shown)

    def _move(self, envs: np.ndarray, actions: np.ndarray) -> None:
        """Turn and walk, and count the step."""
        directions = (self._directions[envs] + _TURNS[actions]) % 4
        cells, steps = self._cells[envs], self._steps[directions]
        walks = (actions == Actions.forward) & _ENTERED[self._codes[cells + steps]]
        cells = cells + walks * steps
        self._directions[envs], self._cells[envs] = directions, cells
        for env, direction in zip(envs.tolist(), directions.tolist(), strict=True):
            level = self._levels[env]
            level.step_count += 1
            level.agent_dir = direction
        for env, cell in zip(envs[walks].tolist(), cells[walks].tolist(), strict=True):
            self._levels[env].agent_pos = self._place(cell)

    def _hands_matter(self, envs: np.ndarray, actions: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """Bool ``(n,)``: where an action of the hands changes something, or what a verifier says or remembers.

        Whatever is dropped, verifiers look again where things are. A strict mission fails at the first door that is
        toggled, or the first thing that is picked up.
        """
        in_hand = self._carried[envs] != EMPTY
        return (
            ((actions == Actions.pickup) & _IS_PICKED[ahead] & ~in_hand)
            | ((actions == Actions.drop) & ((in_hand & (ahead == EMPTY)) | self._moved[envs]))
            | ((actions == Actions.toggle) & _IS_TOGGLED[ahead])
        )

    def _use_hands(self, env: int, action: int, cell: int) -> None:
        """Pick up, drop or toggle what is ahead, as `MiniGridEnv.step` does."""
        level = self._levels[env]
        grid, (x, y) = level.grid, self._place(cell)
        ahead = grid.get(x, y)
        if action == Actions.pickup and level.carrying is None and ahead is not None and ahead.can_pickup():
            level.carrying = ahead
            ahead.cur_pos = np.array([-1, -1])
            grid.set(x, y, None)
        elif action == Actions.drop and level.carrying is not None and ahead is None:
            grid.set(x, y, level.carrying)
            level.carrying.cur_pos = np.array([x, y])
            level.carrying, self._moved[env] = None, True
        elif action == Actions.toggle and ahead is not None:
            ahead.toggle(level, (x, y))
        self._codes[cell], self._carried[env] = _code(grid.get(x, y)), _code(level.carrying)
        if action != Actions.drop:
            self._moved[env] = True
        elif self._moved[env]:  # only then do verifiers look where things are
            self._moved[env] = False
            _look_again(level)
            self._seek(env)

    def _watch(self, env: int, action: int) -> None:
        """See whether a thing was dealt with."""
        watch = self._watches[env]
        assert watch is not None
        if action in watch.actions:
            watch.see(action)
            self._watched[env] = bool(watch.actions)

    def _place(self, cell: int) -> tuple[int, int]:
        """The column and the row, in its grid, of a cell of the boards."""
        _, rows, columns = self._boards.shape
        y, x = divmod(cell % (rows * columns), columns)
        return x - MARGIN, y - MARGIN


def _code(thing: WorldObj | None) -> int:
    code = code_of(thing)
    assert code is not None  # BabyAI's levels have nothing but Minigrid's things
    return code


def _look_again(level: Any) -> None:
    """Note where the things that a mission means are now, as `RoomGridLevel.update_objs_poss` does, which is slower."""
    cells, width = level.grid.grid, level.grid.width
    for description in descriptions(level.instrs):
        meant = {id(thing) for thing in description.obj_set}
        places = [divmod(cell, width)[::-1] for cell, thing in enumerate(cells) if id(thing) in meant]
        description.obj_poss = sorted(places)  # column by column


def _wrappers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Wrapper[Any, Any, Any, Any]]:
    return [env, *_wrappers(env.env)] if isinstance(env, gymnasium.Wrapper) else []
