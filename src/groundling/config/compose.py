"""From an experiment's name, or a file, and overrides to a checked `Config`.

Whatever comes in goes one way: words are parsed (`overrides`), an experiment or a file is read (`reading`), settled on
the schema of its kind of world (`settling`), changed by the words (`changing`), and checked (`checking`), also for what
only the command line can say (`trust`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.config import reading, trust
from groundling.config.changing import change
from groundling.config.checking import check
from groundling.config.overrides import Overrides, parse
from groundling.config.reading import Read, check_config_dir, experiments
from groundling.config.schema import Config
from groundling.config.settling import settle
from groundling.config.used import check_said
from groundling.config.wording import errors_in_one_line, one_line
from groundling.errors import ConfigError

__all__ = [
    "changed",
    "check_config_dir",
    "check_words",
    "compose",
    "experiments",
    "from_file",
    "from_values",
    "recorded",
    "to_yaml",
]


@errors_in_one_line()
def compose(
    experiment: str, overrides: Sequence[str] = (), config_dir: Path | None = None, unused: Sequence[str] = ()
) -> Config:
    """Compose an experiment with overrides such as ``world.num_envs=16``.

    Args:
        experiment: A bundled experiment, or one of ``config_dir/experiment/``.
        overrides: In Hydra's syntax (https://hydra.cc/docs/advanced/override_grammar/basic/): ``key=value`` sets,
            a dict is merged into what is there, ``~key`` takes a free argument out again or empties a dict.
        config_dir: A folder of the user's own YAML files, searched beside the bundled ones.
        unused: As in `from_file`.

    Raises:
        ConfigError: no such experiment, key or id, a value of the wrong type, or one that `trust` refuses.
    """
    parsed = parse(overrides)
    return _made(reading.from_experiment(experiment, config_dir), parsed, unused)


@errors_in_one_line()
def from_file(path: Path, overrides: Sequence[str] = (), unused: Sequence[str] = ()) -> Config:
    """Read a run's ``config.yaml``, with overrides as in `compose`.

    Args:
        path: The file, which may be another's.
        overrides: The command line's; only they can give what `trust.only_said` names.
        unused: What the caller makes nothing of, as in `trust.admit`: there, such settings of the file's are not
            refused but left out.

    Raises:
        ConfigError: the file is missing, broken, or has keys or values that no longer exist, or some that `trust`
            refuses.
    """
    parsed = parse(overrides)
    return _made(reading.from_file(path), parsed, unused)


@errors_in_one_line()
def from_values(values: DictConfig, overrides: Sequence[str] = (), where: str = "the config") -> Config:
    """Check nested values of a file that stand over the schema's defaults, with overrides as in `compose`.

    Args:
        values: The file's.
        overrides: The command line's.
        where: The file, for messages.

    Raises:
        ConfigError: no such key or id, a value of the wrong type, one that is missing, or one that `trust` refuses.
    """
    parsed = parse(overrides)
    return _made(reading.from_values(values, where), parsed)


def _made(read: Read, overrides: Overrides, unused: Sequence[str] = ()) -> Config:
    settled = settle(read)
    change(settled, overrides.changes)
    config = check(settled, read.where, overrides.given, unused)
    check_said(config, overrides.given)
    return config


@errors_in_one_line()
def changed(config: Config, overrides: Sequence[str | Mapping[str, Any]], unused: Sequence[str] = ()) -> Config:
    """``config`` with overrides as in `compose`, or as values by dotted key: Hydra's dicts know no accents in a key.

    They may be those that ``config`` was made with: what has been taken out is not missed.

    The overrides may come from a file: what `trust.only_said` names they can only give as ``config`` has it already.

    Args:
        config: What is changed.
        overrides: How.
        unused: As in `from_file`.

    Raises:
        ConfigError: no such key, or a value of the wrong type, or one that `trust` refuses.
    """
    parsed = parse(overrides)
    settled = OmegaConf.structured(config)
    change(settled, parsed.changes, again=True)
    return check(settled, "an override", dict(trust.leaves("", asdict(config))), unused)


@errors_in_one_line()
def recorded(path: Path) -> dict[str, Any]:
    """What a run's ``config.yaml`` says, all of it, to be compared or shown: nothing is to be made from it.

    Raises:
        ConfigError: as `from_file`.
    """
    settled = settle(reading.from_file(path))
    try:
        values: Any = OmegaConf.to_container(settled, resolve=True, enum_to_str=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot read {path}: {one_line(error)}") from error
    trust.check_plain(values, str(path))
    assert isinstance(values, dict)
    return values


def to_yaml(config: Config) -> str:
    """The complete configuration as YAML; `from_file` reads it again."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))


def check_words(written: Sequence[str], said: Sequence[str], where: str) -> None:
    """Check overrides that stand in a file for what only the command line can say.

    Args:
        written: The file's overrides.
        said: The command line's for the same run.
        where: The file, for the message.

    Raises:
        ConfigError: one is refused by `trust`, or cannot be read.
    """
    trust.admit(parse(written).given, parse(said).given, where)
