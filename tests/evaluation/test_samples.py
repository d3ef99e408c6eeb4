"""Episodes told step by step, from being played again."""

from collections.abc import Sequence

from groundling.configs.schema import Config, EnvConfig
from groundling.envs.observation import TextObservation
from groundling.evaluation.episodes import held_out_seed_of, play, policy_player
from groundling.evaluation.samples import frames, record
from groundling.policies import RandomPolicy
from groundling.training.build import make_envs


class _ReadsMissions(RandomPolicy):
    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return [o.goal for o in observations]


def test_an_episode_whose_task_was_drawn_by_chance_is_played_again_in_that_task() -> None:
    args = {"draw_task": "construction", "max_steps": 2}
    config = Config(env=EnvConfig(id="BabyAI-MixedTrainLocal-v0", args=args))
    policy = _ReadsMissions()
    with policy_player(policy, False, 0) as player:
        envs = make_envs(config, 8, held_out_seed_of(8))
        episodes = play(player, envs, 8)
    for episode in episodes:
        sample = record(config, policy, episode)
        assert {step["prompt"] for step in sample["steps"]} == {episode.mission}
        assert sample["task"] == episode.task
        width = 15 if episode.task == "open" else 8  # two rooms with a wall in common, or one
        assert frames(config, sample)[0].shape[1] == 32 * width
