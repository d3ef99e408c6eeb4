"""A value head that is trained on its own: warm-up, more epochs over recent rollouts, its own learning rate."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from groundling.algorithms.batch import Batch
from groundling.algorithms.optimisation import Learner, Terms, accumulate, learn
from groundling.policies.policy import Policy
from groundling.policies.texts import Written
from groundling.policies.turns import Turn

TermsOf = Callable[[Tensor], Terms]


@contextmanager
def detached(head: nn.Module) -> Iterator[None]:
    """Keep the head's loss out of the weights that compute its input."""
    handle = head.register_forward_pre_hook(lambda head, given: (given[0].detach(),))
    try:
        yield
    finally:
        handle.remove()


class HeadInputs:
    """Inputs of a value head at each element of a batch, recorded while the batch is evaluated.

    Args:
        batch: The batch.
        head: The value head; rows of its input are steps, or tokens that count, in the order of the elements.
    """

    def __init__(self, batch: Batch, head: nn.Module) -> None:
        self._batch, self._head = batch, head
        self._calls: list[Tensor] = []
        self._number = 0  # of the minibatch, which is the same in all processes
        self._rows: dict[int, tuple[int, Tensor]] = {}
        """By element: the minibatch that it was last evaluated in, and float32 ``(num_steps, hidden_size)``."""

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the head's inputs in the block, for losses that are `watched`."""

        def hook(head: nn.Module, given: Sequence[Tensor]) -> None:
            self._calls.append(given[0].detach().flatten(0, -2))

        handle = self._head.register_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    def numbered(self, minibatches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Pass the minibatches through: of an element that several evaluate, the last one's input is kept."""
        for minibatch in minibatches:
            self._number += 1
            yield minibatch

    def watched(self, terms_of: TermsOf) -> TermsOf:
        """Return ``terms_of``, after each call of which the inputs of its elements are kept."""

        def watching(micro: Tensor) -> Terms:
            self._calls.clear()
            terms = terms_of(micro)
            counted = self._counted(micro)
            rows = torch.cat(self._calls)[counted[self._evaluated(micro, counted)]]
            for i, own in zip(micro.tolist(), rows.split(counted.sum(1).tolist()), strict=True):
                self._rows[i] = self._number, own
            return terms

        return watching

    def complete(self, learner: Learner, policy: Policy) -> None:
        """Evaluate, without gradients, the elements that have not been; all processes then have the inputs of all."""
        self._share(learner)
        missing = [i for i in range(len(self._batch)) if i not in self._rows]
        if missing:
            evaluate = self.watched(lambda micro: {"loss": self._batch.evaluate(policy, micro).values.sum()})
            with self.recorded(), torch.no_grad():
                accumulate(learner, self._batch, evaluate, torch.tensor(missing), [])
            self._share(learner)

    def _share(self, learner: Learner) -> None:
        for rows in learner.processes.gather(self._rows):
            self._rows |= {
                i: row for i, row in rows.items() if i not in self._rows or row[0] > self._rows[i][0]
            }

    def transitions(self) -> tuple[Tensor, Tensor]:
        """All inputs ``(num_rows, hidden_size)``, and their returns ``(num_rows,)``."""
        everything = torch.arange(len(self._batch))
        returns = self._batch.returns.reshape(len(self._batch), -1)[self._counted(everything)]
        return torch.cat([self._rows[i][1] for i in range(len(self._batch))]), returns

    def _evaluated(self, micro: Tensor, counted: Tensor) -> Tensor:
        """Bool, of ``counted``'s shape: the steps or tokens that the head has a row for."""
        seen = [self._batch.observations[i] for i in micro.tolist()]
        lengths = torch.tensor([[_num_rows(one, counted.shape[1])] for one in seen], device=counted.device)
        return torch.arange(counted.shape[1], device=counted.device) < lengths

    def _counted(self, micro: Tensor) -> Tensor:
        """Bool ``(num_elements, length)``: the steps or tokens that count."""
        weights = self._batch.weights_of(micro)
        shape = self._batch.returns[micro].reshape(len(micro), -1).shape
        device = self._batch.returns.device
        return (
            torch.ones(shape, dtype=torch.bool, device=device) if weights is None else weights.view(shape) > 0
        )


def _num_rows(observation: object, num_steps: int) -> int:
    """Rows of the head's input at an element: the tokens of a turn or a text, or all ``num_steps`` steps."""
    match observation:
        case Turn():
            return len(observation.tokens)
        case Written():
            return observation.length
    return num_steps


class CriticMemory:
    """Inputs of the value head and returns, of the last rollouts.

    Args:
        rollouts: How many rollouts are kept.
    """

    def __init__(self, rollouts: int) -> None:
        self._kept: deque[tuple[Tensor, Tensor]] = deque(maxlen=rollouts)

    def add(self, states: Tensor, returns: Tensor) -> None:
        """Keep a rollout's ``(num_rows, hidden_size)`` and ``(num_rows,)`` on the CPU, and drop the oldest one."""
        self._kept.append((states.cpu(), returns.cpu()))

    def fit(
        self, learner: Learner, head: nn.Module, size: int, epochs: int, generator: torch.Generator
    ) -> dict[str, float]:
        """Fit the head alone to all that is kept: ½ E[(V - R)²], in minibatches of ``size`` rows.

        Returns:
            ``value_fit_loss``, the mean over the minibatches.
        """
        device = next(head.parameters()).device
        states, returns = (torch.cat(parts).to(device) for parts in zip(*self._kept, strict=True))
        none = torch.zeros_like(returns)
        batch = Batch(range(len(returns)), none, none, none, none, returns, None, None, len(returns))

        def terms(micro: Tensor) -> Terms:
            return {"loss": 0.5 * (head(states[micro]) - returns[micro]).square().mean()}

        learner.optimizer.zero_grad(set_to_none=True)  # gradients of other weights would be stepped on again
        minibatches = batch.minibatches(size, epochs, generator)
        figures = learn(learner, batch, terms, minibatches, None, [*head.parameters()])
        return {"value_fit_loss": figures["loss"]}

    def tensors(self) -> dict[str, Tensor]:
        """All that is kept, by name, for a checkpoint."""
        pairs = ((i, *pair) for i, pair in enumerate(self._kept))
        return {
            name: tensor
            for i, states, returns in pairs
            for name, tensor in ((f"{i}.states", states), (f"{i}.returns", returns))
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave."""
        for i in range(len(tensors) // 2):
            self.add(tensors[f"{i}.states"], tensors[f"{i}.returns"])
