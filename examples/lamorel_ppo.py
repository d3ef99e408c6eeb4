"""Lamorel's PPO example. Run it in two processes: `torchrun --nproc-per-node 2 examples/lamorel_ppo.py`."""

import torch

from groundling import LanguageModel
from groundling.algorithms import generalized_advantage, ppo_loss, standardise
from groundling.envs.vector import TextVectorEnv
from groundling.policies import Action, ActionScoringPolicy
from groundling.runtime.processes import Processes

processes = Processes.join("cpu")
torch.manual_seed(1)  # the same value head, actions and minibatches in all processes
policy = ActionScoringPolicy(LanguageModel.from_pretrained("starter"), prompt="brief")
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
envs = TextVectorEnv.make("BabyAI-GoToRedBall-v0", num_envs=8, seed=1, history=1)
now = envs.reset()
for epoch in range(20):
    seen, steps = now[:0], []
    for _ in range(32):
        outputs = processes.map(policy.outputs, [now[:4], now[4:]])  # each process computes half of the envs
        chosen = Action.choose(*map(torch.cat, zip(*outputs, strict=True)))
        step = envs.step(chosen.actions.tolist())
        rewards, dones = torch.tensor(20 * step.rewards), torch.tensor(step.dones)
        steps.append((chosen.actions, chosen.log_probs, chosen.values, rewards, dones))
        seen, now = seen + now, step.observations
    actions, log_probs, values, rewards, dones = map(torch.stack, zip(*steps, strict=True))  # (steps, envs)
    advantages, returns = generalized_advantage(rewards, values, dones, policy.values(now), 0.99, 0.99)
    stored = actions, log_probs, standardise(advantages), values, returns
    for minibatch in (part for _ in range(4) for part in torch.randperm(len(seen)).split(64)):
        optimizer.zero_grad()
        for half in minibatch.chunk(2)[processes.share(2)]:  # gradients are summed, also across processes
            action, old, gain, value, target = (tensor.flatten()[half] for tensor in stored)
            new = policy.evaluate([seen[i] for i in half], action)
            loss = ppo_loss(new.log_probs, old, gain, new.values, value, target, new.entropies)
            (loss.total / 2).backward()
        processes.sum_gradients(policy.parameters())
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm=0.5)
        optimizer.step()
    if processes.is_main:
        print(f"epoch {epoch + 1}: mean reward {rewards.mean():.3f}")
