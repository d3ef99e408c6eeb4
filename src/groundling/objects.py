"""Python objects passed to a run (envs, models and reward functions), and the ids that its config uses for them."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from groundling.envs.objects import origin_of, qualified_name, register_env
from groundling.errors import ConfigError, GroundlingError
from groundling.lm.load.objects import is_object, save_model
from groundling.rewards.functions import name_of
from groundling.rewards.registry import register_function
from groundling.training.checkpoint import SETTINGS_FILE, check_folder

Function = Callable[..., Any]
"""A reward function: it accepts generations (or completions) and returns a number for each (see `FunctionReward`)."""
Part = str | Function
Reward = Part | Sequence[Part | tuple[Part, float]] | Mapping[Part, float]


def id_of_world(world: Any) -> str | None:
    """Return the id of a world; register the world first if it is an object."""
    return world if world is None or isinstance(world, str) else register_env(world)


def coefficients_of(reward: Reward | None) -> dict[str, float] | None:
    """Return the coefficients of a reward's parts by id; functions are registered under their names."""
    if reward is None:
        return None
    ids: dict[str, float] = {}
    for part, coefficient in _listed(reward):
        ids[part if isinstance(part, str) else register_function(part, taken=ids)] = coefficient
    return ids


def origins_of(world: Any, model: Any, reward: Reward | None) -> dict[str, str]:
    """Return the MODULE:NAME of each object by its id, for a config's ``objects``."""
    named = zip(coefficients_of(reward) or (), _listed(reward or {}), strict=True)
    origins = {id: qualified_name(part) for id, (part, _) in named if callable(part)}
    id = id_of_world(world)
    if id != world and id is not None and (origin := origin_of(id)) is not None:
        origins[id] = origin
    return origins | ({"model": qualified_name(type(model))} if is_object(model) else {})


def _listed(reward: Reward) -> list[tuple[Part, float]]:
    """Return each part with its coefficient; raise `ConfigError` if a part is not a reward, or occurs twice."""
    given = [reward] if isinstance(reward, str) or callable(reward) else reward
    if isinstance(given, Mapping):
        given = list(given.items())
    if not isinstance(given, list | tuple):
        raise ConfigError(
            f"reward must be an id, a function of generations, a list of these, or their coefficients, got {reward!r:.80}"
        )
    pairs: list[Any] = [one if isinstance(one, tuple) and len(one) == 2 else (one, 1.0) for one in given]
    for number, (part, _) in enumerate(pairs):
        if not isinstance(part, str) and not callable(part):
            raise ConfigError(f"a reward must be a function of completions or a reward's id, got {part!r:.80}")
        if any(part is one or part == one for one, _ in pairs[:number]):
            name = part if isinstance(part, str) else name_of(part)
            raise ConfigError(f"the reward {name} is given twice: pass it once, with the sum of its coefficients")
    return pairs


@contextmanager
def saved_model(model: Any, tokenizer: Any, run_dir: Callable[[], str]) -> Iterator[Mapping[str, str]]:
    """Yield the settings of a model and its tokenizer. Objects are saved in the folder ``run_dir()``, which is deleted
    if the run is rejected, unless it existed before.
    """
    if not (is_object(model) or is_object(tokenizer)):
        yield save_model(model, tokenizer, Path())
        return
    folder = Path(run_dir())
    check_folder(folder)
    is_new = not folder.exists()
    try:
        yield save_model(model, tokenizer, folder / "model")
    except GroundlingError:
        if is_new and not (folder / SETTINGS_FILE).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
