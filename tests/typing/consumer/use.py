"""What the README shows, and a loop of one's own, as a typed program."""

from collections.abc import Mapping

import torch

import groundling as gl


def run_and_act() -> Mapping[str, float]:
    run: gl.Run = gl.train(world="BabyAI-GoToLocal-v0", model="starter", algorithm="ppo", steps=30_000)
    evaluation: gl.Evaluation = run.evaluate(episodes=300)
    evaluation.table()
    agent: gl.Agent = gl.load(run.folder)
    env = agent.make_env()
    observation, info = env.reset(seed=0)
    agent.act(observation, info)
    return {name: figure.value for name, figure in evaluation.figures["trained"].items()}


def loop(policy: gl.Policy, algorithm: gl.Algorithm) -> dict[str, float]:
    world: gl.World = gl.make_world("BabyAI-GoToLocal-v0", num_envs=4, num_steps=8)
    algorithm.setup(policy)
    figures: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    with world.rollouts(policy, algorithm) as rollouts:
        rollout, episodes = rollouts.collect(policy, generator=generator)
        assert isinstance(rollout, gl.Rollout)
        figures = algorithm.update(policy, rollout, generator=generator)
        figures["success"] = sum(bool(one.success) for one in episodes) / max(1, len(episodes))
    return figures


@gl.rewards.register("letters")
def letters(generations: list[str]) -> list[float]:
    return [float(text.count("e")) for text in generations]
