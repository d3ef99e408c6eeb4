"""`groundling collect`: an agent plays training episodes, and their transitions become a dataset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.envs.observation import TextObservation
from groundling.envs.seeds import training_seed
from groundling.envs.vector import Episode, Step
from groundling.prompts import PromptReader
from groundling.worlds.recording import Collected
from groundling.worlds.text.dataset import DatasetFolder
from groundling.worlds.text.envs import make_envs
from groundling.worlds.text.episodes import Choice, play, player_of
from groundling.worlds.world import Demonstrator

_EPISODES_PER_FILE = 256


def collect_dataset(
    player: Demonstrator,
    num_episodes: int,
    output: Path,
    *,
    only_success: bool = False,
    validation_fraction: float = 0.0,
    on_episode: Callable[[], None] = lambda: None,
) -> Collected:
    """Play training episodes 0 to ``num_episodes`` and write their transitions into ``output``.

    Files of up to 256 episodes are written one after the other; on Ctrl-C the finished episodes are written first.
    The same call goes on after the last file, also with more ``num_episodes``.

    Args:
        player: Who plays; it draws its actions unless ``evaluation.deterministic``.
        num_episodes: How many episodes the dataset is about in the end.
        output: The dataset's folder.
        only_success: Keep only the episodes that succeed.
        validation_fraction: The share of the episodes that goes into the split ``validation``, evenly spread.
        on_episode: Called once for each episode that is done, or was before.

    Returns:
        What this call added.

    Raises:
        ConfigError: the folder holds something else, or pyarrow is not installed.
        ExpertError: the expert does not know the env.
    """
    splits = ("train", "validation") if validation_fraction else ("train",)
    folder = DatasetFolder(output, _description(player, only_success, validation_fraction), splits)
    total = Collected()
    first = folder.num_episodes
    for _ in range(first):
        on_episode()
    while first < num_episodes:
        count = min(_EPISODES_PER_FILE, num_episodes - first)
        recorder = Recorder(player, first, on_episode)
        try:
            recorder.play(count)
        finally:  # Ctrl-C, say
            done = recorder.contiguous()
            rows: dict[str, list[dict[str, Any]]] = {split: [] for split in splits}
            for number, steps in enumerate(done, start=first):
                if steps[0]["success"] or not only_success:
                    held_out = int((number + 1) * validation_fraction) > int(number * validation_fraction)
                    rows["validation" if held_out else "train"] += steps
                    total.kept += 1
                    total.transitions += len(steps)
            if done:
                folder.append(first, first + len(done) - 1, rows)
                total.episodes += len(done)
        first += count
    return total


def _description(player: Demonstrator, only_success: bool, validation_fraction: float) -> dict[str, Any]:
    settings = {key: value for key, value in player.settings.items() if key != "run_dir"}
    return {
        "agent": player.agent,
        "run": player.run,
        "checkpoint": player.checkpoint,
        "only_success": only_success,
        "validation_fraction": validation_fraction,
        **settings,
    }


@dataclass
class Recorder:
    """Plays episodes from number ``first`` on, and notes every transition."""

    player: Demonstrator
    first: int
    on_episode: Callable[[], None]
    finished: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By number, an episode's rows."""

    def __post_init__(self) -> None:
        self._present: dict[int, list[dict[str, Any]]] = {}  # by env, the rows of its episode so far
        self._read = PromptReader("glam", self.player.world.config.language)

    def play(self, count: int) -> None:
        """Play ``count`` episodes; what is finished when it is interrupted is in ``finished``."""
        world = self.player.world
        self._num_envs = min(world.evaluation.num_envs, count)
        # The first env's training episodes, dealt to all: an episode is the same, whatever the number of envs.
        envs = make_envs(
            world.config,
            self._num_envs,
            lambda env, episode: training_seed(world.seed, 0, self.first + episode * self._num_envs + env),
        )
        seed = training_seed(world.seed, 1, self.first)
        plays = player_of(self.player.agent, self.player.policy, world.evaluation.deterministic, seed)
        try:
            with plays as playing:
                play(playing, envs, count, self.on_episode, self._note)
        finally:
            envs.close()

    def contiguous(self) -> list[list[dict[str, Any]]]:
        """The finished episodes from ``first`` to the one before the first that is not finished."""
        episodes: list[list[dict[str, Any]]] = []
        while (number := self.first + len(episodes)) in self.finished:
            episodes.append(self.finished[number])
        return episodes

    def _note(
        self, indices: Sequence[int], observations: Sequence[TextObservation], choice: Choice, step: Step
    ) -> None:
        prompts = self._prompts(observations)
        for row, env in enumerate(indices):
            observation, action = observations[row], choice.actions[row]
            steps = self._present.setdefault(env, [])
            steps.append(
                {
                    "step": len(steps),
                    "goal": observation.goal,
                    "descriptions": observation.descriptions,
                    "past_actions": observation.past_actions,
                    "actions": observation.actions,
                    "prompt": prompts[row],
                    "action": observation.actions[action],
                    "action_index": action,
                    "reward": float(step.rewards[env]),
                    "done": bool(step.terminated[env] or step.truncated[env]),
                    "log_prob": None if choice.log_probs is None else choice.log_probs[row],
                }
            )
        for episode in step.episodes:
            self._finish(episode)

    def _prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        policy = self.player.policy
        prompts = None if policy is None else policy.prompts(observations)
        return [self._read(o) for o in observations] if prompts is None else prompts

    def _finish(self, episode: Episode) -> None:
        number = self.first + episode.number * self._num_envs + episode.env_index
        same = {
            "episode": number,
            "seed": episode.seed,
            "task": episode.task,
            "success": episode.success,
        }
        self.finished[number] = [same | row for row in self._present.pop(episode.env_index)]
