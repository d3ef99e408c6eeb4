"""Motif's tasks: rewards, termination, and the handling of NetHack's prompts.

The tasks follow Motif's paper and code (arXiv 2310.00166). They differ from nle's tasks of the same names: staircase
and oracle tasks have a one-time reward of 50 and no time penalty; the hero must descend the staircase; the agent can
answer the question of what to eat; and a success message is kept after a ``--More--``.
"""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

import gymnasium
import numpy as np
from nle import nethack
from nle.env import base
from nle.env.tasks import TASK_ACTIONS

from groundling.envs.nethack.observation import VECTORS, EndStatus
from groundling.errors import ConfigError

COMPAT = ("sober", "scout", "crop")  # bugs in the original that can be kept (see `NetHackTask`)
OBSERVATION_KEYS = ("tty_chars", "tty_colors", "tty_cursor", "blstats", "message")
RENDER_MODES = ["ansi", "rgb_array"]
SUCCESS_REWARD = 50.0

_LEVEL = slice(nethack.NLE_BL_DNUM, nethack.NLE_BL_DLEVEL + 1)  # slice of blstats: the dungeon and the level in it
_SPACE, _ESCAPE = ord(" "), nethack.C("[")
_NORTH_WEST = int(nethack.CompassDirection.NW)  # the "y" key, which also means yes
_EAT_QUESTION = b"What do you want to eat"
EAT_CHOICES = re.compile(rb"\[[^\]A-Za-z]*([A-Za-z])[^\]]* or \?\*\]")
_DESCENDED = b"You descend the stairs"
# A hero who starts on a scroll may have to name it before the first move. In this case, nle starts another game with
# the next random numbers of its generator, and so do these tasks.
warnings.filterwarnings("ignore", message="Not in moveloop", module=re.escape(__name__))
_LEFT_TO_THE_AGENT = (b"eat", b"attack", b"direction?", b"pray")  # substrings of questions that the agent answers


class NetHackTask(base.NLE, ABC):
    """Base class for NetHack tasks with Motif's 23 actions; subclasses define the reward.

    A seed always produces the same episode, except for shopkeepers' names, which depend on the clock. ``reset(seed=s)``
    seeds all of NetHack's generators and the moon phase; later calls to ``reset()`` use seeds from the same stream.
    nle's ``seed`` sets the seeds of the next episode, unless ``reset`` is called with a seed.

    ``terminated`` means that the game or the task is over, ``truncated`` that ``max_episode_steps`` was reached; only
    one of them is set (nle sets ``terminated`` in all cases). Infos contain ``end_status``, ``dlvl`` (depth), ``gold``,
    ``xlvl`` (experience level), ``score``, ``turns`` and ``scout`` (explored squares), even after the game is over.

    Args:
        observation_keys: Keys of nle's observations; each is copied at every step.
        compat: Bugs in the original to keep, from `COMPAT`. ``sober``: `NetHackOracle` considers the hero sober unless
            hallucination is the only condition; ``scout``: squares explored in earlier episodes are counted;
            ``crop``: the window is centred on the square above the hero (`groundling.envs.nethack.observation`).
        vector: The blstats in a policy's vector and their scale: ``full`` for all 27, or ``motif`` for the original
            selection (`groundling.envs.nethack.observation.VECTORS`).
        render_mode: `render` returns the screen as text (``ansi``) or as an image (``rgb_array``).
        args: nle's arguments: ``max_episode_steps``, ``character``, ``savedir``, ``save_ttyrec_every``, ….
    """

    StepStatus = EndStatus
    continual = False  # continue the episode after success
    metadata: ClassVar[dict[str, Any]] = {"render_modes": RENDER_MODES, "render_fps": 10}

    def __init__(
        self,
        observation_keys: Collection[str] = OBSERVATION_KEYS,
        compat: Collection[str] = (),
        vector: str = "full",
        render_mode: str | None = None,
        **args: Any,
    ) -> None:
        if wrong := sorted(set(compat) - set(COMPAT)):
            raise ConfigError(f"compat may only contain {', '.join(COMPAT)}, got {', '.join(wrong)}")
        for name, value, known in (("vector", vector, VECTORS), ("render_mode", render_mode, (None, *RENDER_MODES))):
            if value not in known:
                raise ConfigError(f"{name} must be {' or '.join(map(str, known))}, got {value!r}")
        self.compat = frozenset(compat)
        args = {"actions": TASK_ACTIONS, "fix_moon_phase": True} | args
        super().__init__(observation_keys=tuple(observation_keys), render_mode=render_mode, **args)
        self.end_status = EndStatus.RUNNING
        self._seeded_by_hand = False
        self._last_observation: dict[str, np.ndarray] | None = None  # of a game that `quit` ended
        self._explored: dict[tuple[int, ...], int] = {}
        self._keys = [int(action) for action in self.actions]

    def seed(self, *args: Any, **kwargs: Any) -> Any:
        self._seeded_by_hand = True
        return super().seed(*args, **kwargs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        self.begin(seed, options)
        return self._seen()

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = self.advance(action)
        observation, info = self._seen()
        if terminated or truncated:
            self._last_observation = observation
            self.quit()
        return observation, reward, terminated, truncated, info

    def render(self) -> str | np.ndarray | None:
        """Return the screen as 24 lines of text or an image, uint8 ``(height, width, 3)``; None without a mode."""
        from groundling.envs.nethack.recording import Screen

        screen = Screen.of(self._last_observation or self.arrays)
        if self.render_mode == "ansi":
            return screen.text()
        return np.asarray(screen.image()) if self.render_mode == "rgb_array" else None

    def begin(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset without copying: the observation is in `arrays`."""
        gymnasium.Env.reset(self, seed=seed)
        if seed is not None or not self._seeded_by_hand:
            core, disp, lgen = self.np_random.integers(2**31, size=3).tolist()
            super().seed(core, disp, reseed=False, lgen=lgen)
        self._seeded_by_hand = False
        super().reset(options=options or None)  # nle rejects {}
        buffers = dict(zip(self._observation_keys, self.last_observation, strict=True))
        self.arrays: dict[str, np.ndarray] = {key: buffers[key] for key in self._original_observation_keys}
        """The current observation by key: nle's own buffers, which the next step overwrites."""
        self._blstats, self._message = buffers["blstats"], buffers["message"]
        self._glyphs, self._internal = buffers["glyphs"], buffers["internal"]
        self._last_observation = None
        self.end_status = EndStatus.RUNNING
        self._game_over = False
        self.blstats: list[int] = self._blstats.tolist()  # after the end of the game, those of its last step
        self.message: bytes = self._message.tobytes()  # 256 bytes padded with zeros
        if "scout" not in self.compat:
            self._explored.clear()
        self._map = self._glyphs.tobytes()

    def advance(self, action: int) -> tuple[float, bool, bool]:
        """Step without copying; return reward, terminated and truncated. The observation is in `arrays`."""
        key = self._keys[action]
        if _EAT_QUESTION in self.message:  # answer with the first choice, or cancel
            choices = EAT_CHOICES.search(self.message)
            key = choices[1][0] if key == _NORTH_WEST and choices else _SPACE
        done = self.nethack.step(key)[1]
        if any(self._internal[1:4].tolist()):
            done = self._answer_prompts(done)
        self._steps += 1
        self.message = self._message.tobytes()
        before = self.blstats
        now = self._blstats.tolist()
        in_game = self.nethack.in_normal_game()
        if in_game:
            if now[_LEVEL] != before[_LEVEL]:
                self._explored[tuple(before[_LEVEL])] = self._explored_here()
            self.blstats = now
            self._map = self._glyphs.tobytes()
        success = not done and self._is_success()
        reward = self._reward(before, now, in_game, success)
        ended = done or (success and not self.continual)
        aborted = not ended and self._steps >= self._max_episode_steps
        self._game_over = done
        if ended or aborted:
            success_or_cut = EndStatus.TASK_SUCCESSFUL if ended else EndStatus.ABORTED
            self.end_status = EndStatus.DEATH if done else success_or_cut
        return reward, ended, aborted

    def quit(self) -> None:
        """Quit the game if the episode ended before the game did."""
        if not self._game_over:
            self._quit_game(self.last_observation, False)
            self._game_over = True

    def figures(self) -> dict[str, int]:
        """Return the episode's statistics so far."""
        stats = self.blstats
        self._explored[tuple(stats[_LEVEL])] = self._explored_here()
        return {
            "score": stats[nethack.NLE_BL_SCORE],
            "dlvl": stats[nethack.NLE_BL_DEPTH],
            "gold": stats[nethack.NLE_BL_GOLD],
            "xlvl": stats[nethack.NLE_BL_XP],
            "turns": stats[nethack.NLE_BL_TIME],
            "scout": sum(self._explored.values()),
        }

    def _answer_prompts(self, done: bool) -> bool:
        """Skip every ``--More--`` and decline questions that no action can answer; return True if the game is over."""
        kept = b""
        while not done:
            _, question, line, more = self._internal[:4].tolist()
            text = self._message.tobytes()
            if more and _DESCENDED in text:
                kept = text
            is_declined = line or (question and not any(word in text for word in _LEFT_TO_THE_AGENT))
            if more or is_declined:
                done = self.nethack.step(_SPACE if more else _ESCAPE)[1]
            if not (more or line):
                break
        if kept and not done:
            self._message[:] = np.frombuffer(kept, dtype=np.uint8)
        return bool(done)

    def _explored_here(self) -> int:
        return int(np.count_nonzero(np.frombuffer(self._map, dtype=np.int16) != nethack.GLYPH_CMAP_OFF))

    def _seen(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return a copy of the observation, and the info."""
        ascended = self.nethack.how_done() == nethack.ASCENDED
        info = {"end_status": self.end_status, "is_ascended": ascended, **self.figures()}
        return {key: array.copy() for key, array in self.arrays.items()}, info

    def _is_success(self) -> bool:
        return False

    @abstractmethod
    def _reward(self, before: list[int], now: list[int], in_game: bool, success: bool) -> float:
        """Return a step's reward from the blstats ``before`` and ``now``; ``now`` is valid only if ``in_game``."""


class NetHackScore(NetHackTask):
    """The reward is the increase in the game's score, minus 0.01 for each step in which no time passes."""

    penalty = -0.01

    def _reward(self, before: list[int], now: list[int], in_game: bool, success: bool) -> float:
        gained = now[nethack.NLE_BL_SCORE] - before[nethack.NLE_BL_SCORE] if in_game else 0
        frozen = now[nethack.NLE_BL_TIME] == before[nethack.NLE_BL_TIME]
        return gained + (self.penalty if frozen else 0.0)


class _Once(NetHackTask):
    """Base class for tasks with a reward of 50 for the first success in an episode."""

    def begin(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._paid = False
        super().begin(seed, options)

    def _reward(self, before: list[int], now: list[int], in_game: bool, success: bool) -> float:
        pays, self._paid = success and not self._paid, self._paid or success
        return SUCCESS_REWARD if pays else 0.0


class NetHackStaircase(_Once):
    """Descend the stairs to level ``level`` of any dungeon, including the Gnomish Mines.

    Args:
        level: Number of the level in its dungeon, starting at 1, as in blstats[24].
        continual: Continue the episode after success.
    """

    def __init__(self, level: int = 2, continual: bool = False, **args: Any) -> None:
        super().__init__(**args)
        self.level, self.continual = level, continual

    def _is_success(self) -> bool:
        return self.blstats[nethack.NLE_BL_DLEVEL] == self.level and _DESCENDED in self.message


class NetHackOracle(_Once):
    """Stand next to the Oracle.

    Args:
        sober: Do not accept success while the hero hallucinates, since anything may then look like the Oracle.
    """

    def __init__(self, sober: bool = False, **args: Any) -> None:
        super().__init__(**args)
        self.sober = sober
        monsters = range(nethack.GLYPH_MON_OFF, nethack.GLYPH_PET_OFF)
        self._oracle = next(
            glyph for glyph in monsters if nethack.permonst(nethack.glyph_to_mon(glyph)).mname == "Oracle"
        )

    def _is_success(self) -> bool:
        x, y = self.blstats[nethack.NLE_BL_X], self.blstats[nethack.NLE_BL_Y]
        around = self._glyphs[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
        condition = self.blstats[nethack.NLE_BL_CONDITION]
        is_only = "sober" in self.compat
        drugged = condition == nethack.BL_MASK_HALLU if is_only else condition & nethack.BL_MASK_HALLU
        return self._oracle in around and not (self.sober and drugged)


class AdoptTimeLimit(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Sets the task's step limit to `gymnasium.make`'s ``max_episode_steps``, which otherwise only adds a `TimeLimit`.
    At the limit, ``end_status`` is then -1. The limit may exceed the task's default of 5,000 steps.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.unwrapped._max_episode_steps = env.get_wrapper_attr("_max_episode_steps")  # type: ignore[attr-defined]


GOALS: dict[str, type[NetHackTask]] = {"score": NetHackScore, "staircase": NetHackStaircase, "oracle": NetHackOracle}
