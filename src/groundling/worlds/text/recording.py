"""`groundling collect`: an agent plays training episodes, and their transitions become a dataset."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from groundling.envs.observation import TextObservation
from groundling.envs.text_episode import Step
from groundling.prompts import PromptReader
from groundling.worlds.recording import Collected
from groundling.worlds.text.dataset import DatasetFolder
from groundling.worlds.text.episodes import Choice, play_training_episodes
from groundling.worlds.world import Demonstrator

_EPISODES_PER_FILE = 256
_Rows = list[dict[str, Any]]
"""Transitions of an episode."""


def collect_dataset(
    player: Demonstrator,
    num_episodes: int,
    output: Path,
    only_success: bool = False,
    validation_fraction: float = 0.0,
    on_episode: Callable[[], None] = lambda: None,
) -> Collected:
    """Play training episodes 0 to ``num_episodes`` and write their transitions into ``output``.

    Files of up to 256 episodes are written one after the other; on Ctrl-C the finished episodes are written first.
    The same call continues after the last file, also with a larger ``num_episodes``.

    Args:
        player: Draws its actions unless ``evaluation.deterministic``.
        num_episodes: Number of episodes that the dataset comes from in the end.
        output: The dataset's folder.
        only_success: Keep only the episodes that succeed.
        validation_fraction: Share of the episodes that form the split ``validation``, evenly spread.
        on_episode: Called once for each episode, including those played before.

    Returns:
        What this call added.

    Raises:
        ConfigError: The folder holds something else, or pyarrow is not installed.
        ExpertError: The expert does not know the env.
    """
    splits = ("train", "validation") if validation_fraction else ("train",)
    folder = DatasetFolder(output, _description(player, only_success, validation_fraction), splits)
    total = Collected()
    first = folder.num_episodes
    for _ in range(first):
        on_episode()
    while first < num_episodes:
        count = min(_EPISODES_PER_FILE, num_episodes - first)
        finished: dict[int, _Rows] = {}
        try:
            _record(player, first, count, finished, on_episode)
        finally:  # also on Ctrl-C
            rows: dict[str, _Rows] = {split: [] for split in splits}
            last = first
            while last in finished:  # up to the first episode that has not ended
                steps = finished[last]
                if steps[0]["success"] or not only_success:
                    held_out = int((last + 1) * validation_fraction) > int(last * validation_fraction)
                    rows["validation" if held_out else "train"] += steps
                    total.kept += 1
                    total.transitions += len(steps)
                last += 1
            if last > first:
                folder.append(first, last - 1, rows)
                total.episodes += last - first
        first += count
    return total


def _description(player: Demonstrator, only_success: bool, validation_fraction: float) -> dict[str, Any]:
    settings = {key: value for key, value in player.settings.items() if key != "run_dir"}
    return {
        "agent": player.name,
        "run": player.run,
        "checkpoint": player.checkpoint,
        "only_success": only_success,
        "validation_fraction": validation_fraction,
        **settings,
    }


def _record(
    player: Demonstrator, first: int, count: int, finished: dict[int, _Rows], on_episode: Callable[[], None]
) -> None:
    """Play ``count`` episodes from number ``first``, and put each one's transitions into ``finished``."""
    present: dict[int, _Rows] = {}  # of the present episodes, by env
    read = PromptReader("glam", player.world.config.language)

    def note(indices: Sequence[int], observations: Sequence[TextObservation], choice: Choice, step: Step) -> None:
        prompts = None if player.policy is None else player.policy.prompts(observations)
        if prompts is None:
            prompts = [read(observation) for observation in observations]
        for row, env in enumerate(indices):
            observation, action = observations[row], choice.actions[row]
            steps = present.setdefault(env, [])
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

    seed = player.world.training_seed(1, first)
    for number, episode in play_training_episodes(player, first, count, seed, note):
        about = {"episode": number, "seed": episode.seed, "task": episode.task, "success": episode.success}
        finished[number] = [about | row for row in present.pop(episode.env_index)]
        on_episode()
