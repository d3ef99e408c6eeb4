"""Fuzz targets for settings: overrides, experiments, files of runs, studies, files of GLAM and RL4LMs."""

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from groundling.config import facts, overrides
from groundling.config.compose import compose, from_file, to_yaml
from groundling.config.schema import Config
from groundling.convert.experiment import convert
from groundling.errors import ConfigError
from groundling.fields import leaves
from groundling.io.documents import check_depth, read_yaml
from groundling.studies import definition as studies
from groundling.studies.definition import read_study
from tests.convert import originals
from tests.fuzz import mutation
from tests.fuzz.harness import Target
from tests.hostile.test_command_lines import OVERRIDES

EXPERIMENTS = ("demo-easy", "glam/symbolic", "motif/laptop", "rl4lms/increasing_numbers_nlpo", "worlds/coin_drrn")
_GRAMMAR = (
    *("=", ",", ":", "~", "+", "++", "@pkg", "[", "]", "{", "}", "(", ")", "'", '"', "\\", "range(1,4)", "glob(*)"),
    *("sort(3,1)", "shuffle(1,2)", "choice(a,b)", "int(1.5)", "str(1)", "float(a)", "bool(x)", "json_str({a:1})"),
    *("tag(a,1)", "interval(0,1)", "extend_list(1)", "range(1,1000000000)", "${a}", "???", "/", "."),
)
_KEYS = tuple({one.partition("=")[0].lstrip("~") for one in OVERRIDES if "=" in one})
_SETTINGS = ("seeds=1,2", "episodes=3", "suites=a,b", "arms=a", "arms.a.seed=1", "common=[]", "~policy.args.x")
_TAGS = (*(f"!!{tag} " for tag in ("int", "float", "bool", "timestamp", "set", "null")), "!a ", "&a ", "*a", "<<: ")
_YAML = (*mutation.WORDS, *_TAGS, "? ", "| ", "> ", "---\n", "...\n", "%YAML 9.9\n", "2001-01-01", "1:30", "- \n")


def _override(random: Random) -> str:
    return mutation.text(random, OVERRIDES, (*mutation.WORDS, *_GRAMMAR, *_KEYS))


def _grammar(made: str, folder: Path) -> None:
    override = overrides.read(made)
    if override.is_sweep_override():
        for (run,) in overrides.sweep([made]):
            assert not overrides.read(run).is_sweep_override()
        return
    (change,) = overrides.parse([made])
    assert (change.key, change.takes_out) == (override.key_or_group, override.is_delete())
    if not change.takes_out:
        value = override.value()
        assert repr(change.value) == repr(value)
        if isinstance(value, str):
            assert overrides.read(f"a={facts.quoted(value)}").value() == value


def _experiment(random: Random) -> tuple[str, list[Any]]:
    key, value = random.choice(_KEYS), mutation.value(random, random.choice(mutation.VALUES))
    chosen = random.choice(({key: value}, random.choice(OVERRIDES), _override(random)))
    return random.choice(EXPERIMENTS), [chosen] * random.choice((1, 1, 1, 2))


def _composed(made: tuple[str, list[Any]], folder: Path) -> None:
    _comes_back(compose(*made), folder)


def _comes_back(config: Config, folder: Path) -> None:
    """Check that a config is read back unchanged, unless it contains settings that no file may set."""
    written = to_yaml(config)
    if any(facts.command_line_only(key, value) for key, value in leaves("", config.model_dump())):
        return
    path = folder / "again.yaml"
    path.write_text(written, encoding="utf-8")
    try:
        again = to_yaml(from_file(path))
    except ConfigError as error:
        raise AssertionError(f"a written file is refused: {error}") from error
    assert again == written


@cache
def _configs() -> tuple[tuple[str, ...], tuple[Any, ...]]:
    texts = tuple(to_yaml(compose(name)) for name in EXPERIMENTS)
    return texts, tuple(map(yaml.safe_load, texts))


def _yaml(random: Random, texts: tuple[str, ...], values: tuple[Any, ...]) -> bytes:
    """Return YAML of mutated values, or mutated YAML."""
    if random.random() < 0.6:
        content = yaml.safe_dump(mutation.value(random, random.choice(values)), allow_unicode=True)
        return content.encode("utf-8", "surrogatepass")
    return mutation.encoded(random, mutation.text(random, texts, _YAML))


def _written(made: bytes, folder: Path) -> Path:
    path = folder / "made.yaml"
    path.write_bytes(made)
    return path


def _run(made: bytes, folder: Path) -> None:
    _comes_back(from_file(_written(made, folder)), folder)


_SMALL = ("a: 1\nb: [x, 2.5, null]\n", "a: &a {b: c}\nd: *a\n", "'é': \"\\u00e9\"\nb: |\n  text\n", "a: ${b}\nb: ''\n")


def _document(made: bytes, folder: Path) -> None:
    loaded = read_yaml(_written(made, folder))
    assert isinstance(loaded, DictConfig)
    plain: Any = OmegaConf.to_container(loaded, resolve=False)
    check_depth(plain, "what was read")
    assert sum(1 for _ in leaves("", plain)) <= 10_000


_STUDY: dict[str, Any] = {
    "name": "s",
    "title": "A study",
    "seeds": [1, 2],
    "suites": ["held-out"],
    "episodes": 5,
    "common": ["training.steps=64"],
    "arms": {
        "a": {"experiment": "demo-easy", "about": "x", "overrides": ["seed=1", "~policy.args.x"]},
        "b": {"experiment": "glam/bc", "data": "a", "suites": None},
    },
}


def _study_file(random: Random) -> tuple[bytes, list[str]]:
    texts = (*(path.read_text("utf-8") for path in list(studies._bundled().values())[:3]), yaml.safe_dump(_STUDY))
    settings = [mutation.text(random, _SETTINGS, (*_GRAMMAR, *mutation.WORDS)) for _ in range(random.choice((0, 1)))]
    return _yaml(random, texts, (_STUDY,)), settings


def _study(made: tuple[bytes, list[str]], folder: Path) -> None:
    content, settings = made
    study, chosen = read_study(str(_written(content, folder)), settings)
    assert chosen.items() <= study.arms.items()
    if settings:
        return
    again = folder / "again.yaml"
    OmegaConf.save(OmegaConf.create(study.model_dump()), again)
    try:
        assert read_study(str(again))[0] == study
    except ConfigError as error:
        raise AssertionError(f"a written file is refused: {error}") from error


_GLAM = tuple(originals.GLAM.values())


def _convert(made: bytes, folder: Path) -> None:
    _comes_back(convert(_written(made, folder)).config, folder)


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Return GLAM's entries with values in place of ???."""
    names = {"name_environment": "BabyAI-GoToObj-v0", "action_space": ["turn_left", "go_forward"], "path": "train.py"}
    made: dict[str, Any] = {}
    for key, value in values.items():
        made[key] = _filled(value) if isinstance(value, dict) else names.get(key, 1) if value == "???" else value
    return made


def targets() -> list[Target]:
    """Return the targets for settings."""
    glam = tuple(map(_filled, _GLAM))
    rl4lms = tuple(originals.rl4lms(name) for name in originals.RL4LMS[::5])
    glam_texts, rl4lms_texts = (tuple(map(yaml.safe_dump, values)) for values in (glam, rl4lms))
    documents = lambda random: _yaml(random, _SMALL, (_STUDY, {"a": [1, {"b": "c"}]}))  # noqa: E731
    in_glam, in_rl4lms = "as compose, for the converted config", "the same"
    return [
        Target(
            "overrides",
            _override,
            _grammar,
            "written values are read back the same; a sweep's runs contain no sweep",
            20_000,
        ),
        Target("compose", _experiment, _composed, "`to_yaml`, then `from_file`, gives the same config", 500),
        Target("from_file", lambda random: _yaml(random, *_configs()), _run, "the same", 500),
        Target("read_yaml", documents, _document, "within the limits on values and nesting", 3_000),
        Target("studies", _study_file, _study, "a study is read back the same, including its arms", 600),
        Target("glam_config", lambda random: _yaml(random, glam_texts, glam), _convert, in_glam, 300),
        Target("rl4lms_config", lambda random: _yaml(random, rl4lms_texts, rl4lms), _convert, in_rl4lms, 300),
    ]
