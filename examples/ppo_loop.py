"""PPO in a custom loop: `python examples/ppo_loop.py` (two minutes on one core).

A language model learns to go to a red ball in an otherwise empty room. The loop uses a world, a policy and an
algorithm: collect a rollout, update, repeat.
"""

import torch

import groundling as gl


def train(updates: int = 30, num_envs: int = 8, seed: int = 1) -> list[float]:
    """Train, and return the success rate of each update's episodes."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    world = gl.make_world("BabyAI-GoToRedBallNoDists-v0", num_envs=num_envs, num_steps=40, history=1, seed=seed)
    lm = gl.LanguageModel.from_pretrained("starter-causal")
    policy = gl.policies.ActionScoringPolicy(lm, prompt="brief", temperature=2, value_hidden_sizes=[128])
    ppo = gl.algorithms.PPO(learning_rate=4e-4, epochs=1, minibatch_size=64, normalize_advantages=True)
    ppo.setup(policy)
    success_rates = []
    with world.rollouts(policy, ppo) as rollouts:
        for update in range(updates):
            rollout, episodes = rollouts.collect(policy, generator=generator)
            figures = ppo.update(policy, rollout, generator=generator, remaining=1 - update / updates)
            success_rates.append(sum(bool(e.success) for e in episodes) / max(1, len(episodes)))
            print(f"{update}: success {success_rates[-1]:.2f}, entropy {figures['entropy']:.2f}")
    return success_rates


if __name__ == "__main__":
    train()
