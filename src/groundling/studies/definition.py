"""Studies: several arms, each trained with several seeds and evaluated alike; what their YAML says, and its reading."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import get_type_hints

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.config.compose import check_words
from groundling.config.reading import headline
from groundling.config.trust import check_plain
from groundling.config.types import check_values
from groundling.errors import ConfigError
from groundling.io.documents import DocumentError, check_expansion, read_yaml
from groundling.registry import unknown
from groundling.worlds import agents


@dataclass
class Arm:
    """What a study compares with others."""

    experiment: str = MISSING
    """An experiment, or one of `groundling list agents`: those are not trained, only evaluated."""
    about: str = ""
    """What it is, in a few words for tables."""
    overrides: list[str] = field(default_factory=list)
    """Over the experiment and the study's common overrides."""
    data: str | None = None
    """For algorithms that clone: who first plays as many transitions as training.steps says, one of the world's own
    agents (as expert) or another arm (its trained agent of the same seed)."""
    suites: list[str] | None = None
    """Its tests; null: the study's. Only those of the other arms are taken together as ``(shared)``."""
    seeds: list[int] | None = None
    """Those of the study's seeds that it is trained with, of a costly arm; null: all."""


@dataclass
class Study:
    """Which arms, seeds and tests."""

    name: str = MISSING
    title: str = ""
    """The heading of its results."""
    note: str = ""
    """What a reader of the results has to bear in mind: a paragraph of their README."""
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    suites: list[str] | None = None
    """Tests of `groundling evaluate`; null: the usual one of the arm's world. An arm passes over those that do not suit
    it. The results of worlds whose studies tell all figures, and not successes alone, are of the first."""
    episodes: int = 200
    """How many each agent plays of each test."""
    common: list[str] = field(default_factory=list)
    """Overrides for all arms."""
    reference: str | None = None
    """The arm from which the others' differences are told, seed by seed; null: none are told."""
    arms: dict[str, Arm] = field(default_factory=dict)
    """By name, in the order in which they are run; one that clones another stands after it."""


_ITS_OWN = {
    "seed": "give seeds=1,2,3",
    "run_dir": "give --runs FOLDER",
    "name": "it is the arm's name: rename the arm",
}
"""Keys of a run that the study itself sets, and what to do instead."""


def studies() -> dict[str, str]:
    """The bundled studies by name, each with the first line of its header."""
    return {_named(path): headline(path) for path in _bundled()}


def read_study(name: str, settings: Sequence[str] = ()) -> tuple[Study, dict[str, Arm]]:
    """Read a bundled study, or a YAML file of one's own.

    Args:
        name: Of the study, or a path that ends in ``.yaml``.
        settings: ``seeds=1,2``, ``episodes=N``, ``suites=NAME,NAME`` and ``arms=NAME,NAME`` (only these) change the
            study; ``arms.NAME.KEY=VALUE`` changes a key of one arm's runs, ``KEY=VALUE`` of all arms' runs.

    Returns:
        The study with all its arms, and those of them that are asked for.

    Raises:
        ConfigError: no such study, arm or key, a value of the wrong type, or the file has overrides that only
            ``settings`` can have.
    """
    study = _load(_find(name))
    written = {name: [*study.common, *arm.overrides] for name, arm in study.arms.items()}
    chosen = list(study.arms)
    for text in settings:
        key, equals, value = text.partition("=")
        if key in ("seeds", "episodes", "suites", "arms") and equals:
            if key == "arms":
                chosen = [_arm(study, arm) for arm in value.split(",")]
            else:
                study = _set(study, key, value)
        elif key.lstrip("~").startswith("arms."):
            arm, _, config_key = key.partition("arms.")[2].partition(".")
            if not config_key:
                raise ConfigError(f"expected arms.NAME.KEY=VALUE, got {text!r}")
            _arm(study, arm)
            tilde = "~" if key.startswith("~") else ""
            study.arms[arm].overrides.append(f"{tilde}{config_key}{equals}{value}")
        elif key in _ITS_OWN:
            raise ConfigError(f"a study sets {key} for each run: {_ITS_OWN[key]}")
        else:
            for one in study.arms.values():
                one.overrides.append(text)
    for arm, words in written.items():
        said = study.arms[arm].overrides[len(words) - len(study.common) :]
        try:
            check_words(words, said, f"the study {name}")
        except ConfigError as error:
            raise ConfigError(f"arm {arm}: {error}") from error
    return study, {arm: study.arms[arm] for arm in study.arms if arm in chosen}


def _bundled() -> list[Path]:
    with resources.as_file(resources.files("groundling.config") / "study") as folder:
        return sorted(folder.glob("*.yaml"))


def _named(path: Path) -> str:
    return path.stem.replace("_", "-")


def _find(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    paths = {_named(path): path for path in _bundled()}
    if name not in paths:
        raise ConfigError(unknown("study", name, paths))
    return paths[name]


def _load(path: Path) -> Study:
    try:
        loaded = read_yaml(path)
        plain = OmegaConf.to_container(loaded, resolve=False)
        check_plain(plain, str(path))
        check_expansion(plain, str(path))
        study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), loaded))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}: see `groundling list studies`") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot read the study {path}: {str(error).splitlines()[0]}") from error
    except (OSError, DocumentError) as error:
        raise ConfigError(f"cannot read the study {path}: {error}") from error
    assert isinstance(study, Study)
    for name, hint in get_type_hints(Study).items():  # OmegaConf lets a list of texts hold a mapping
        try:
            check_values(name, asdict(study)[name], hint)
        except ConfigError as error:
            raise ConfigError(f"cannot read the study {path}: {error}") from error
    if not study.arms:
        raise ConfigError(f"the study {path} has no arms: name at least one")
    for name in (study.name, *study.arms):  # folders and files are called so
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ConfigError(
                f"the study {path} names {name!r:.80}: names of studies and arms begin with a letter, digit or _, and "
                "go on with these, dots, + and -"
            )
    _check_numbers("seeds", study.seeds)
    _check_numbers("episodes", [study.episodes])
    before = [*agents()]
    for name, arm in study.arms.items():
        if arm.data is not None and arm.data not in before:
            raise ConfigError(f"arms.{name}.data: {unknown('agent, or arm before it,', arm.data, before)}")
        before.append(name)
        if arm.seeds is not None:
            _check_numbers(f"arms.{name}.seeds", arm.seeds)
        if beyond := sorted({*(arm.seeds or ())} - {*study.seeds}):
            raise ConfigError(
                f"arms.{name}.seeds: {beyond} are not among the study's seeds, {study.seeds}: name some of those"
            )
    if study.reference is not None:
        _arm(study, study.reference)
        if study.arms[study.reference].experiment in agents():
            raise ConfigError(f"reference: {study.reference} is not trained: name an arm that is")
    return study


def _set(study: Study, key: str, value: str) -> Study:
    """Change ``seeds``, ``episodes`` or ``suites``."""
    if key == "suites":
        for arm in study.arms.values():
            arm.suites = None  # what is asked for on the command line is asked of all
        return replace(study, suites=value.split(","))
    try:
        numbers = [int(number) for number in value.strip("[]").split(",")]
    except ValueError:
        numbers = []
    _check_numbers(key, numbers, value)
    return replace(study, seeds=numbers) if key == "seeds" else replace(study, episodes=numbers[0])


def _check_numbers(key: str, numbers: Sequence[int], value: object = None) -> None:
    """Raise `ConfigError` unless these are seeds, or a number of episodes; ``value`` is what was written."""
    value = list(numbers) if value is None else value
    if key == "episodes" and (len(numbers) != 1 or numbers[0] < 1):
        raise ConfigError(f"{key} must be a positive number, got {value!r:.80}")
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ConfigError(f"{key} must be numbers, each once, as in 1,2,3, got {value!r:.80}")


def _arm(study: Study, name: str) -> str:
    if name not in study.arms:
        raise ConfigError(unknown("arm", name, study.arms))
    return name
