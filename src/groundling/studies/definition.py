"""Studies as YAML files: several arms, each trained with several seeds and evaluated in the same way."""

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from groundling.config.compose import check_words, headline, plain_values, resolve_names
from groundling.errors import ConfigError, unknown
from groundling.fields import Ge, Section
from groundling.io.documents import DocumentError, read_yaml
from groundling.worlds import agents


def _name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.+-]*", name):  # names of folders and files
        raise ValueError("a name that starts with a letter, digit or _ and contains only these, dots, + and -")
    return name


def _seeds(seeds: list[int]) -> list[int]:
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError("distinct non-negative integers, as in 1,2,3")
    return seeds


Name = Annotated[str, AfterValidator(_name)]
Seeds = Annotated[list[int], AfterValidator(_seeds)]


class Arm(Section):
    """One of the agents that a study compares."""

    experiment: str
    """An experiment, or an agent (see `groundling list agents`), which is evaluated without training."""
    about: str = ""
    """A short description for tables."""
    overrides: list[str] = []
    """Overrides of the experiment, applied after the study's common overrides."""
    data: str | None = None
    """For cloning algorithms, the agent to clone: one of the world's agents, such as expert, or another arm (its agent
    with the same seed). ``training.steps`` of the agent's transitions are recorded."""
    suites: list[str] | None = None
    """Test suites; if null, those of the study. Arms that set this do not affect which suites are ``(shared)``."""
    seeds: Seeds | None = None
    """A subset of the study's seeds, for an expensive arm; if null, all of them."""


class Study(Section):
    """The arms, seeds and tests of a study."""

    name: Name
    title: str = ""
    """The heading of the results."""
    note: str = ""
    """A paragraph for the README of the results."""
    seeds: Seeds = [1, 2, 3]
    suites: list[str] | None = None
    """Test suites; if null, the default suite of the arm's world. An arm skips suites that do not apply to it. If a
    world's studies report all metrics rather than only success, only the first suite is reported."""
    episodes: Annotated[int, Ge(1)] = 200
    """Episodes that each agent plays in each test."""
    common: list[str] = []
    """Overrides for all arms."""
    reference: str | None = None
    """The arm with which the others are compared, seed by seed."""
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    """Arms by name, in the order in which they run; a clone of another arm must follow it."""

    def find_arm(self, name: str) -> Arm:
        """Return an arm; raise `ConfigError` if there is no arm with this name."""
        if name not in self.arms:
            raise ConfigError(unknown("arm", name, self.arms))
        return self.arms[name]


_SET_BY_STUDY = {  # keys that the study sets for each run, with the setting to use instead
    "seed": "use seeds=1,2,3",
    "run_dir": "use --runs FOLDER",
    "name": "rename the arm instead",
}


def studies() -> dict[str, str]:
    """Return the bundled studies by name, each with the first line of its header."""
    return {name: headline(path) for name, path in _bundled().items()}


def read_study(name: str, settings: Sequence[str] = ()) -> tuple[Study, dict[str, Arm]]:
    """Read a bundled study or a YAML file; return the study with all its arms, and the selected arms.

    The settings ``seeds=1,2``, ``episodes=N``, ``suites=NAME,NAME`` and ``arms=NAME,NAME`` (the selected arms) change
    the study, ``arms.NAME.KEY=VALUE`` changes one arm's runs, and ``KEY=VALUE`` all runs. Raises `ConfigError` if the
    file contains overrides that are allowed only in ``settings``.
    """
    bundled = _bundled()
    if not name.endswith((".yaml", ".yml")) and name not in bundled:
        raise ConfigError(unknown("study", name, bundled))
    study = _load(bundled.get(name, Path(name)))
    written = {name: [*study.common, *arm.overrides] for name, arm in study.arms.items()}
    selected = list(study.arms)
    for word in settings:
        key, equals, value = word.partition("=")
        if key == "arms" and equals:
            selected = value.split(",")
            for arm in selected:
                study.find_arm(arm)
        elif key in ("seeds", "episodes", "suites") and equals:
            values = [int(one) if one.isdecimal() and len(one) < 20 else one for one in value.strip("[]").split(",")]
            is_number = key == "episodes" and len(values) == 1
            study = Study.of({**study.model_dump(), key: values[0] if is_number else values})
            if key == "suites":  # suites on the command line apply to all arms
                for one in study.arms.values():
                    one.suites = None
        elif key.lstrip("~").startswith("arms."):
            arm, _, config_key = key.partition("arms.")[2].partition(".")
            if not config_key:
                raise ConfigError(f"expected arms.NAME.KEY=VALUE, got {word!r}")
            tilde = "~" if key.startswith("~") else ""
            study.find_arm(arm).overrides.append(f"{tilde}{config_key}{equals}{value}")
        elif key in _SET_BY_STUDY:
            raise ConfigError(f"a study sets {key} for each run: {_SET_BY_STUDY[key]}")
        else:
            for one in study.arms.values():
                one.overrides.append(word)
    for arm, words in written.items():
        given = study.arms[arm].overrides[len(words) - len(study.common) :]
        try:
            check_words(words, given, f"the study {name}")
        except ConfigError as error:
            raise ConfigError(f"arm {arm}: {error}") from error
    return study, {arm: study.arms[arm] for arm in study.arms if arm in selected}


def _bundled() -> dict[str, Path]:
    with resources.as_file(resources.files("groundling.config") / "study") as folder:
        return {path.stem.replace("_", "-"): path for path in sorted(folder.glob("*.yaml"))}


def _load(path: Path) -> Study:
    try:
        study = Study.of(resolve_names(plain_values(read_yaml(path), str(path)), str(path)))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}: see `groundling list studies`") from None
    except (OSError, DocumentError, ConfigError) as error:
        raise ConfigError(f"cannot read the study {path}: {error}") from error
    _check_references(study)
    return study


def _check_references(study: Study) -> None:
    """Raise `ConfigError` if the study refers to an arm or a seed that it does not contain."""
    before = [*agents()]
    for name, arm in study.arms.items():
        if arm.data is not None and arm.data not in before:
            raise ConfigError(f"arms.{name}.data: {unknown('agent or earlier arm', arm.data, before)}")
        before.append(name)
        if beyond := sorted({*(arm.seeds or ())} - {*study.seeds}):
            raise ConfigError(
                f"arms.{name}.seeds: {beyond} are not among the study's seeds: choose from {study.seeds}"
            )
    if study.reference is not None and study.find_arm(study.reference).experiment in agents():
        raise ConfigError(f"the reference {study.reference} is not trained: choose a trained arm")
