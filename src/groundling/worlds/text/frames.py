"""Frames of text envs, for watching an episode and for replaying an evaluation's sample episodes with pictures."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import is_server
from groundling.envs.seeds import held_out_seed
from groundling.envs.text_env import TextObservation
from groundling.envs.text_episode import TextEpisode
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, UnknownEnv
from groundling.io.documents import read_bundled
from groundling.io.row_files import BEFORE_ALL, RowFile, read_rows
from groundling.policies.policy import Policy
from groundling.worlds.episode import EpisodeView, Frame, Summary
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import actions_of, chooser_of, known_actions_of, make_envs, probabilities_of
from groundling.worlds.world import Player

_FILE = "probes.jsonl"


class Probe(NamedTuple):
    title: str
    goal: str
    descriptions: tuple[tuple[str, ...], ...]  # the recent observations, oldest first
    past_actions: tuple[str, ...]
    right: tuple[str, ...]  # the right actions, as named in `ACTIONS`


@cache
def load_probes() -> dict[int, tuple[Probe, ...]]:
    """Return the two sets of probes by number."""
    sets: dict[int, tuple[Probe, ...]] = {}
    for number, probes in read_bundled(Path(__file__).with_name("probes.yaml")).items():
        sets[number] = tuple(
            Probe(p["title"], p["goal"], tuple(map(tuple, turns[::2])), tuple(turns[1::2]), tuple(p["right"]))
            for p, turns in ((p, p["turns"]) for p in probes)  # descriptions and actions alternate
        )
    return sets


def observations(probes: Sequence[Probe], actions: tuple[str, ...], history: int | None) -> list[TextObservation]:
    """Return the probes as observations with these actions and at most ``history`` descriptions."""
    return [
        TextObservation(p.goal, p.descriptions, p.past_actions, actions, {"mission": p.goal}).recent(history)
        for p in probes
    ]


def right_actions(config: TextConfig) -> dict[str, list[str]]:
    """Return each probe's right actions by its title, as named in the config."""
    names = dict(zip(ACTIONS["english"], known_actions_of(config).names or (), strict=False))
    return {p.title: [names[a] for a in p.right if a in names] for probes in load_probes().values() for p in probes}


def read_probes(run_dir: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's ``probes.jsonl``: ``update``, ``step``, and probabilities by probe and action."""
    return read_rows(run_dir / _FILE)


class ProbeLog:
    """Appends the probes' action probabilities to a run's ``probes.jsonl``, continuing after ``update``."""

    def __init__(self, config: TextConfig, policy: Policy, run_dir: Path, update: int) -> None:
        self._policy = policy
        names = actions_of(config).names
        if not names:
            raise ConfigError(
                f"the probes need fixed actions, which {config.env} does not have: set world.probes=null"
            )
        sets = load_probes()
        probes = [probe for number in sets if config.probes in (number, "both") for probe in sets[number]]
        self._titles = [probe.title for probe in probes]
        self._observations = observations(probes, names, config.history)
        if policy.outputs(self._observations[:1]) is None:
            raise ConfigError(
                f"{type(policy).__name__} has no action probabilities for isolated observations: set world.probes=null"
            )
        self._rows = RowFile(run_dir / _FILE, update or BEFORE_ALL)
        if not update:
            self.log({"update": 0, "step": 0})

    def log(self, row: dict[str, Any]) -> None:
        outputs = self._policy.outputs(self._observations)
        assert outputs is not None
        by_probe = [
            {action: round(p, 6) if math.isfinite(p) else None for action, p in zip(o.actions, values, strict=True)}
            for o, values in zip(self._observations, outputs.log_probs.exp().tolist(), strict=True)
        ]
        probabilities = dict(zip(self._titles, by_probe, strict=True))
        self._rows.append({"update": row["update"], "step": row["step"], "probabilities": probabilities})


_MOST_ACTIONS = 8  # Maximum number of actions in a frame: the chosen one and the most likely others
_MOST_FRAMES = 30
_MARKS: dict[str, Literal["named", "other"]] = {"named": "named", "other": "other"}


def view(config: TextConfig, sample: Mapping[str, Any]) -> EpisodeView:
    """Return a view of an episode from ``samples/*.json`` (see `sample_of`), with a picture before each action."""
    first, actions = sample.get("first"), sample["actions"][:_MOST_FRAMES]
    steps: list[dict[str, Any]] = sample.get("steps", [])[:_MOST_FRAMES]
    nothing = [None] * len(actions)
    pictures: list[np.ndarray | None] = [*nothing]
    try:
        played = replay(config, sample["seed"], actions, sample.get("task"))
        shown = [(observation, picture_of(env)) for observation, env in played]
    except UnknownEnv:  # the module that registers it is not imported: show only what was recorded
        if not (steps or is_server(config.env)):
            raise
    else:
        pictures = [picture for _, picture in shown]
        steps = steps or _steps([observation for observation, _ in shown], actions, nothing, nothing)
    frames = [
        Frame(
            step["descriptions"] or ["(nothing in sight)"],
            partial(_same, picture),
            step["action"],
            likeliest(step["probabilities"], step["action"]),
            prompt=step["prompt"],
            mark="" if first is None or first.get("step") != number else _MARKS[first["target"]],
        )
        for number, (step, picture) in enumerate(zip(steps, pictures, strict=False), start=1)
    ]
    notes = [] if first is None else [_about_first(first)]
    if sample["suite"] != "held-out":
        notes.append(f"Suite: {sample['suite']}.")
    return EpisodeView(
        _marked(f"“{sample['mission']}”" if sample["mission"] else "episode", first["named"] if first else []),
        frames,
        sample["success"],
        notes,
        len(sample["actions"]) - len(frames),
        steps[0]["prompt"] if steps else None,
    )


def likeliest(probabilities: Mapping[str, float] | None, action: str) -> Mapping[str, float] | None:
    """Return the probabilities of the chosen action and the most likely others, or of all actions if there are few."""
    if probabilities is None or len(probabilities) <= _MOST_ACTIONS:
        return probabilities
    ranked = sorted(probabilities, key=lambda name: (name != action, -probabilities[name]))[:_MOST_ACTIONS]
    return {name: probabilities[name] for name in sorted(ranked, key=lambda name: -probabilities[name])}


def watch(config: TextConfig, player: Player, number: int, deterministic: bool, seed: int) -> Iterator[Frame]:
    """Play a held-out episode step by step; the last frame contains the outcome. ``seed`` is the run's seed."""
    envs, chooser = drawing_env(config, held_out_seed(number)), chooser_of(player, deterministic, seed + number)
    with closing(envs), chooser as choose:
        (observation,), step = envs.reset(), 0
        while True:
            choice = choose(envs, [0], [observation])
            action = observation.action_text(choice.actions[0])
            outputs = None if player.policy is None else player.policy.outputs([observation])
            probabilities = likeliest(probabilities_of(outputs, observation), action)
            written = [] if choice.turns is None else choice.turns[0].text.splitlines()
            step += 1
            heading = " · ".join([*([observation.goal] if observation.goal else []), f"step {step}"])
            said = [f"> {line}" for line in written] if not observation.actions else [*written, f"> {action}"]
            lines = [heading, *observation.descriptions[-1], *said]
            yield Frame(lines, partial(_same, picture_of(envs.envs[0])), action, probabilities)
            taken = envs.step(choice.actions)
            for episode in taken.episodes:
                outcome = "success" if episode.success else "failure"
                title = f"episode {number} · {outcome} · return {episode.episode_return:.4g} · {step} steps"
                lines = [episode.mission, *taken.final_observations[0].descriptions[-1]]
                yield Frame(lines, summary=Summary(title))
                return
            observation = taken.observations[0]


def _same(picture: np.ndarray | None) -> np.ndarray | None:
    return picture


def _about_first(first: Mapping[str, Any]) -> str:
    if first["target"] == "none":
        return "The agent did not interact with any object."
    which = "which is named in the mission" if first["target"] == "named" else "which is not named in the mission"
    when = f", at step {first['step']}" if first.get("step") else ""
    return f"First interaction: with {first.get('thing') or 'an object'}, {which}{when}."


def _marked(mission: str, named: Sequence[str]) -> list[tuple[str, bool]]:
    """Split a mission into parts, each with True if it is the name of the object to interact with first."""
    if not named:
        return [(mission, False)]
    parts = re.split(f"({'|'.join(map(re.escape, named))})", mission)
    return [(part, part in named) for part in parts if part]


_NUM_SAMPLES = 4


def select(episodes: Sequence[TextEpisode]) -> list[TextEpisode]:
    successes = [e for e in episodes if e.success]
    failures = [e for e in episodes if not e.success]
    return [*successes[: _NUM_SAMPLES - bool(failures)], *failures][:_NUM_SAMPLES]


def sample_of(config: TextConfig, policy: Policy, episode: TextEpisode) -> dict[str, Any]:
    """Replay ``episode`` and return the policy's prompts and probabilities at each step, as JSON; for a server's
    episodes, they are omitted.
    """
    if is_server(config.env):  # it may ignore seeds
        return outline(episode)
    played = replay(config, episode.seed, episode.actions, episode.task)
    observations = [observation for observation, _ in played]
    nothing = [None] * len(observations)
    prompts = policy.prompts(observations) or nothing
    outputs = policy.outputs(observations)
    probabilities = nothing if outputs is None else outputs.log_probs.exp().tolist()
    return {**outline(episode), "steps": _steps(observations, episode.actions, prompts, probabilities)}


def outline(episode: TextEpisode) -> dict[str, Any]:
    """Return an episode's outcome and the data for replaying it, as JSON."""
    return {
        "seed": episode.seed,
        "task": episode.task,
        "mission": episode.mission,
        "success": episode.success,
        "return": episode.episode_return,
        "actions": list(episode.actions),
        "first": None if episode.first is None else asdict(episode.first),
    }


def _steps(
    observations: Sequence[TextObservation],
    actions: Sequence[int | str],
    prompts: Sequence[str | None],
    probabilities: Sequence[Sequence[float] | None],
) -> list[dict[str, Any]]:
    return [
        {
            "descriptions": observation.descriptions[-1],
            "prompt": prompt,
            "action": observation.action_text(action),
            "probabilities": None if p is None else dict(zip(observation.actions, p, strict=False)),
        }
        for observation, prompt, action, p in zip(observations, prompts, actions, probabilities, strict=True)
    ]


def replay(
    config: TextConfig, seed: int, actions: Sequence[int | str], task: str | None
) -> Iterator[tuple[TextObservation, gymnasium.Env[Any, Any]]]:
    """Replay an episode: yield the observation before each action, and the env, which renders pictures if it can.
    Raise `UnknownEnv` for a server, since reports must not connect to servers.
    """
    if is_server(config.env):
        raise UnknownEnv(f"{config.env} is a server, whose episodes are not replayed")
    if config.args.get("draw_task") == "construction":  # the seed does not determine the task
        config = config.model_copy(update={"args": {**config.args, "task": task}})
    with closing(drawing_env(config, seed)) as envs:
        observation = envs.reset()[0]
        for action in actions:
            yield observation, envs.envs[0]
            observation = envs.step([action]).observations[0]


def drawing_env(config: TextConfig, seed: int) -> TextVectorEnv:
    """Create an env that uses this seed for every episode, and renders pictures if it can."""
    config = config.model_copy(update={"num_workers": 0})
    envs = make_envs(config, 1, lambda env, episode: seed)
    if "rgb_array" in envs.envs[0].metadata.get("render_modes", ()):
        # A subclass of a MiniGrid env inherits the mode, but may not accept it as an argument.
        with suppress(ConfigError):
            drawing = make_envs(config, 1, lambda env, episode: seed, render_mode="rgb_array")
            envs.close()
            return drawing
    return envs


def picture_of(env: gymnasium.Env[Any, Any]) -> np.ndarray | None:
    """Render an env as uint8 ``(height, width, 3)``; return None if it has no pictures."""
    picture: Any = None
    with suppress(NotImplementedError):
        picture = env.render() if env.render_mode == "rgb_array" else None
    return picture if isinstance(picture, np.ndarray) else None
