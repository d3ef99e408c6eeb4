"""Extra training epochs for a value head on recent rollouts, with its inputs treated as constants."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from groundling.algorithms.optimisation import Learner, LossFunction, Terms, accumulate, learn
from groundling.algorithms.rollout import Batch
from groundling.policies.policy import Policy, Turn
from groundling.policies.text_states import Written


@contextmanager
def detached(head: nn.Module) -> Iterator[None]:
    """Detach the head's input, so that the loss on its output trains only the head."""
    handle = head.register_forward_pre_hook(lambda head, given: (given[0].detach(),))
    try:
        yield
    finally:
        handle.remove()


class HeadInputs:
    """Recorder of the value head's inputs for each element of a batch: one row per step or token to learn from."""

    def __init__(self, batch: Batch, head: nn.Module) -> None:
        self._batch, self._head = batch, head
        self._number = 0  # Number of the minibatch; the same in all processes
        # By element: the last minibatch that evaluated it, and its inputs, float32 (num_steps, hidden_size)
        self._rows: dict[int, tuple[int, Tensor]] = {}

    def numbered(self, minibatches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Number the minibatches, so that only the latest inputs of each element are kept."""
        for minibatch in minibatches:
            self._number += 1
            yield minibatch

    def recorded(self, loss: LossFunction) -> LossFunction:
        """Wrap ``loss`` so that it also records the inputs of the elements that it evaluates."""

        def recording(part: Batch) -> Terms:
            calls: list[Tensor] = []
            handle = self._head.register_forward_pre_hook(
                lambda head, given: calls.append(given[0].detach().flatten(0, -2))
            )
            try:
                terms = loss(part)
            finally:
                handle.remove()
            counted = _counted(part)
            # The head receives one row per token for turns and texts, and one per step otherwise.
            lengths = torch.tensor([[_num_rows(o) or counted.shape[1]] for o in part.observations])
            evaluated = (torch.arange(counted.shape[1]) < lengths).to(counted.device)
            rows = torch.cat(calls)[counted[evaluated]]
            for i, row in zip(part.index.tolist(), rows.split(counted.sum(1).tolist()), strict=True):
                self._rows[i] = self._number, row
            return terms

        return recording

    def complete(self, learner: Learner, policy: Policy) -> None:
        """Evaluate the remaining elements, without gradients; all processes then have the inputs of all elements."""
        self._share(learner)
        missing = [i for i in range(len(self._batch)) if i not in self._rows]
        if missing:
            loss = self.recorded(lambda p: {"loss": policy.evaluate(p.observations, p.actions).values.sum()})
            with torch.no_grad():
                accumulate(learner, self._batch, loss, torch.tensor(missing), [])
            self._share(learner)

    def _share(self, learner: Learner) -> None:
        for rows in learner.processes.gather(self._rows):
            self._rows |= {i: row for i, row in rows.items() if i not in self._rows or row[0] > self._rows[i][0]}

    def transitions(self) -> tuple[Tensor, Tensor]:
        """Return all inputs ``(num_rows, hidden_size)``, and their returns ``(num_rows,)``, on the CPU."""
        returns = self._batch.returns.reshape(len(self._batch), -1)[_counted(self._batch)]
        return torch.cat([self._rows[i][1] for i in range(len(self._batch))]).cpu(), returns.cpu()


def _counted(batch: Batch) -> Tensor:
    """Return a bool mask ``(num_elements, length)`` of the steps or tokens to learn from."""
    returns = batch.returns.reshape(len(batch), -1)
    return torch.ones_like(returns).bool() if batch.weights is None else batch.weights.view_as(returns) > 0


def _num_rows(observation: object) -> int:
    """Return the number of tokens in a turn or a text; 0 for other observations."""
    if isinstance(observation, Turn):
        return len(observation.tokens)
    return observation.length if isinstance(observation, Written) else 0


def fit_head(
    learner: Learner,
    head: nn.Module,
    rollouts: Iterable[tuple[Tensor, Tensor]],
    size: int,
    epochs: int,
    generator: torch.Generator,
) -> dict[str, float]:
    """Train only the head: minimise ½ E[(V - R)²] on `HeadInputs.transitions`, in minibatches of ``size`` rows."""
    device = next(head.parameters()).device
    states, returns = (torch.cat(parts).to(device) for parts in zip(*rollouts, strict=True))
    zeros = torch.zeros_like(returns)
    rows, more = range(len(returns)), {"states": states}
    batch = Batch(rows, zeros, zeros, zeros, zeros, returns, None, None, torch.arange(len(rows)), len(rows), more)

    def loss(part: Batch) -> Terms:
        return {"loss": 0.5 * (head(part.more["states"]) - part.returns).square().mean()}

    learner.optimizer.zero_grad(set_to_none=True)  # the other weights must not be updated with stale gradients
    minibatches = batch.minibatches(size, epochs, generator)
    figures = learn(learner, batch, loss, minibatches, None, [*head.parameters()])
    return {"value_fit_loss": figures["loss"]}
