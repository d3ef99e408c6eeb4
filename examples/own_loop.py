"""A custom loop, head and update rule around `score` and `generate`, with any number of processes.

    python examples/own_loop.py
    torchrun --nproc-per-node 2 examples/own_loop.py      # the same results: the processes share the prompts

A language model learns to say where an object is, and is rewarded for the right answer.
"""

import torch
from torch import nn

from groundling import LanguageModel
from groundling.runtime.processes import Processes

ANSWERS = ["left", "right", "ahead"]
PLACES = {"left": "2 steps left", "right": "3 steps right", "ahead": "4 steps forward"}


class Baseline(nn.Module):
    """Predict the reward from the hidden state at the end of a prompt."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.linear(states).squeeze(-1)  # (prompts, hidden_size) to (prompts,)


def train(updates: int = 30, batch: int = 16) -> list[float]:
    """Train with REINFORCE; return the mean reward of each update, which is the same in all processes."""
    processes = Processes.join("cpu")
    torch.manual_seed(0)  # the same prompts, answers and initial weights in all processes
    lm = LanguageModel.from_pretrained("starter")
    baseline = Baseline(lm.hidden_size)
    parameters = [*lm.parameters(), *baseline.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    rewards_seen = []
    for update in range(updates):
        truths = torch.randint(len(ANSWERS), (batch,))
        luck = torch.rand(batch)
        own = processes.share(batch)
        prompts = [f"Observation 0: You see a red ball {PLACES[ANSWERS[t]]}, Where? " for t in truths[own].tolist()]
        scored = lm.score_candidates(prompts, ANSWERS)  # log_probs (own, answers), state (own, hidden_size)
        log_policy = scored.log_probs.log_softmax(-1)
        cumulative = log_policy.detach().exp().cumsum(-1)
        chosen = (cumulative < luck[own, None]).sum(-1).clamp(max=len(ANSWERS) - 1)  # (own,)
        rewards = (chosen == truths[own]).float()
        expected = baseline(scored.state)
        taken = log_policy.gather(1, chosen[:, None])[:, 0]
        loss = ((expected.detach() - rewards) * taken + (expected - rewards).square()).sum() / batch
        optimizer.zero_grad()
        loss.backward()
        processes.sum_gradients(parameters)
        optimizer.step()
        mean = processes.sum_figures({"reward": rewards.sum().item() / batch})["reward"]
        rewards_seen.append(mean)
        if processes.is_main and (update + 1) % 10 == 0:
            print(f"update {update + 1}: mean reward {mean:.2f}")
    if processes.is_main:
        written = lm.generate([f"Observation 0: You see a red ball {PLACES['left']}, Where? "], max_new_tokens=4)
        print(f"it writes: {written[0].text!r}")
    return rewards_seen


if __name__ == "__main__":
    train()
