"""DPO and KTO, which train a policy on preferences between texts without a reward model."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.losses import check_shapes, masked_mean
from groundling.algorithms.optimisation import Schedule, Terms, learn, make_adamw, schedule_learning_rate
from groundling.algorithms.rollout import Batch, Rollout, micro_batches
from groundling.envs.text_env import WorldSpec
from groundling.fields import Ge, Gt, Lt, NoEffectOnResults, OnlyWith
from groundling.policies.policy import Policy, Work
from groundling.runtime.processes import Processes, in_parts

DPOLoss = Literal["sigmoid", "robust", "hinge", "ipo"]


def dpo_loss(
    chosen: Tensor,
    rejected: Tensor,
    *,
    beta: float = 0.1,
    loss_type: DPOLoss = "sigmoid",
    label_smoothing: float = 0.0,
    lengths: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """DPO's loss for each pair (Rafailov et al. 2023, arXiv 2305.18290, equation 7).

    sigmoid: -log σ(βΔ), Δ = chosen - rejected
    robust:  (-(1-ε) log σ(βΔ) + ε log σ(-βΔ)) / (1-2ε) (Chowdhury et al. 2024, arXiv 2403.00409)
    hinge:   max(0, 1-βΔ) (Zhao et al. 2023, arXiv 2305.10425)
    ipo:     (Δ - 1/(2β))² with Δ of means over tokens (Azar et al. 2023, arXiv 2310.12036, equation 17)

    Args:
        chosen, rejected: log π(text) - log π_ref(text), summed over the text's tokens, ``(num_pairs,)``.
        beta, label_smoothing: β, and ε, the assumed share of wrong labels.
        lengths: Numbers of tokens in the chosen and rejected texts; required by ipo.
    """
    check_shapes(chosen, rejected)
    if loss_type == "ipo":
        assert lengths is not None
        return (chosen / lengths[0] - rejected / lengths[1] - 1 / (2 * beta)).square()
    margin = beta * (chosen - rejected)
    if loss_type == "hinge":
        return F.relu(1 - margin)
    if loss_type == "robust":
        smoothed = (label_smoothing - 1) * F.logsigmoid(margin) + label_smoothing * F.logsigmoid(-margin)
        return smoothed / (1 - 2 * label_smoothing)
    return -F.logsigmoid(margin)


def kto_loss(
    log_ratios: Tensor,
    desirable: Tensor,
    kl: float | Tensor,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """KTO's loss for each text (Ethayarajh et al. 2024, arXiv 2402.01306, equation 7, without its constant).
    λ_D (1 - σ(β (r - z))) for a desirable text, λ_U (1 - σ(β (z - r))) for an undesirable one, z = KL(π ‖ π_ref)

    Args:
        log_ratios: r = log π(text) - log π_ref(text), summed over the text's tokens, ``(num_texts,)``.
        desirable: 1 for a desirable text, 0 for an undesirable one.
        kl: z, without gradient.
        desirable_weight, undesirable_weight: λ_D and λ_U.
    """
    check_shapes(log_ratios, desirable)
    margins = beta * (log_ratios - kl)
    gains, losses = 1 - torch.sigmoid(margins), 1 - torch.sigmoid(-margins)
    return torch.where(desirable > 0, desirable_weight * gains, undesirable_weight * losses)


@dataclass
class PreferenceLearning(Algorithm):
    """Base class for learning from preferences. A text's implicit reward is β (log π(text) - log π_ref(text)).
    Each example is two adjacent columns of a rollout, and one element of a batch.
    """

    beta: Annotated[float, Gt(0)] = 0.1  # Strength of the pull towards the reference; usually 0.01 to 0.5
    learning_rate: Annotated[float, Gt(0)] = 1e-6
    """AdamW's step size: 1e-6 for billions of parameters, 1e-5 with LoRA, about 1e-4 for a million."""
    learning_rate_schedule: Schedule = "linear"
    """Schedule of the learning rate over training; the rate is set once per update."""
    warmup: Annotated[float, Ge(0), Lt(1)] = 0.0  # Fraction of training over which the rate rises from a tenth
    weight_decay: Annotated[float, Ge(0)] = 0.0  # AdamW's weight decay, for matrices only
    minibatch_size: Annotated[int, Ge(1)] = 16  # Examples (pairs, or labelled texts) per optimizer step
    micro_batch_size: Annotated[int | None, Ge(1), NoEffectOnResults] = None
    """Examples per forward and backward pass; affects only memory and speed. Defaults to the whole minibatch."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0

    gamma = 1.0
    offline = True
    needs_values = False
    needs_reference = True
    reports_entropy = False

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if "preferred" not in world.experience:
            return "it learns from preferences between texts (world.pool=preferences)"
        return super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        self.optimizer = make_adamw(policy, self.learning_rate, weight_decay=self.weight_decay)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Take one optimizer step on each minibatch of ``rollout``, in order."""
        learning_rate, batch = schedule_learning_rate(self, remaining), _batch_of(policy, rollout)
        assert batch.weights is not None
        counted = batch.index[batch.weights.bool().cpu()]  # examples after the end of a pass are masked

        def minibatches() -> Iterator[Tensor]:
            for indices in counted.split(self.minibatch_size):
                self.prepare(policy, batch, indices, self.processes)
                yield indices

        figures = learn(self, batch, partial(self.loss, policy), minibatches())
        return {**self.summary(figures), "learning_rate": learning_rate}

    @torch.no_grad()
    def measure(self, policy: Policy, rollout: Rollout) -> dict[str, float]:
        """Evaluate held-out examples without learning, in one process; return the metrics of `update`."""
        batch, figures = _batch_of(policy, rollout), dict[str, float]()
        self.prepare(policy, batch, batch.index, Processes())
        for indices in batch.index.split(self.micro_batch_size or self.minibatch_size):
            for name, term in self.loss(policy, batch[indices]).items():
                figures[name] = figures.get(name, 0.0) + term.item() * len(indices) / len(batch)
        return self.summary(figures)

    def prepare(self, policy: Policy, batch: Batch, indices: Tensor, processes: Processes) -> None:
        """Compute statistics of all examples ``indices`` for the loss, before they are split into micro-batches."""

    @abstractmethod
    def loss(self, policy: Policy, batch: Batch) -> Terms:
        """Return the loss of a micro-batch and the terms to log."""

    def summary(self, figures: dict[str, float]) -> dict[str, float]:
        """Return the metrics to log from the mean terms of `loss`."""
        return figures


@algorithms.register("dpo")
@dataclass
class DPO(PreferenceLearning):
    """Direct preference optimization, which makes chosen texts more probable than rejected ones; see `dpo_loss`.
    L = -E[log σ(β log π(chosen)/π_ref(chosen) - β log π(rejected)/π_ref(rejected))]
    """

    loss_type: DPOLoss = "sigmoid"
    """"sigmoid": DPO; "robust": for labels that are partly wrong; "hinge": SLiC; "ipo": IPO, with beta as its τ."""
    label_smoothing: Annotated[float, Ge(0), Lt(0.5), OnlyWith("loss_type", ("robust",))] = 0.0
    """Assumed share of wrong labels."""
    learns_from = "pairs"

    def loss(self, policy: Policy, batch: Batch) -> Terms:
        chosen, rejected = log_ratios(policy, batch).unbind(1)
        first, second = batch.more["inside"].sum(-1).unbind(1)
        losses = dpo_loss(
            chosen,
            rejected,
            beta=self.beta,
            loss_type=self.loss_type,
            label_smoothing=self.label_smoothing,
            lengths=(first, second),
        )
        with torch.no_grad():
            shares = {
                "rewards/chosen": self.beta * chosen,
                "rewards/rejected": self.beta * rejected,
                "rewards/margins": self.beta * (chosen - rejected),
                "accuracy": (torch.sign(chosen - rejected) + 1) / 2,
            }
        return {name: masked_mean(values, batch.weights) for name, values in {"loss": losses, **shares}.items()}


@algorithms.register("kto")
@dataclass
class KTO(PreferenceLearning):
    """Kahneman-Tversky optimization, which learns from texts labelled desirable or undesirable; see `kto_loss`.
    The KL is the mean of log π - log π_ref over a minibatch's prompts with mismatched texts, or 0 if negative.
    """

    desirable_weight: Annotated[float, Gt(0)] = 1.0
    """λ_D. The paper keeps λ_D n_D / (λ_U n_U) between 1 and 3/2, where n_D and n_U are the numbers of texts."""
    undesirable_weight: Annotated[float, Gt(0)] = 1.0  # λ_U
    learns_from = "labels"

    _kl: float = field(default=0.0, init=False, repr=False)

    def prepare(self, policy: Policy, batch: Batch, indices: Tensor, processes: Processes) -> None:
        # Sharded layers need the same number of passes in all processes.
        if any(map(in_parts, policy.parameters())):
            processes = Processes()
        total, size = 0.0, self.micro_batch_size or self.minibatch_size
        with torch.no_grad():
            for micro in micro_batches(indices, size, batch.work, processes):
                total += log_ratios(policy, batch[micro], (1,)).sum().item()
        self._kl = max(0.0, processes.sum_figures({"kl": total})["kl"] / len(indices))

    def loss(self, policy: Policy, batch: Batch) -> Terms:
        ratios, desirable = log_ratios(policy, batch, (0,))[:, 0], batch.returns
        weights = {"desirable_weight": self.desirable_weight, "undesirable_weight": self.undesirable_weight}
        losses = kto_loss(ratios, desirable, self._kl, beta=self.beta, **weights)
        rewards = self.beta * ratios.detach()
        shares = {
            "desirable": desirable,
            "rewards/chosen": rewards * desirable,
            "rewards/rejected": rewards * (1 - desirable),
            "accuracy": ((rewards > self.beta * self._kl) == desirable.bool()).float(),
            "kl": torch.full_like(rewards, self._kl),
        }
        return {name: masked_mean(values, batch.weights) for name, values in {"loss": losses, **shares}.items()}

    def summary(self, figures: dict[str, float]) -> dict[str, float]:
        share = figures["desirable"]
        sums = figures.pop("rewards/chosen"), figures.pop("rewards/rejected")
        if 0 < share < 1:  # otherwise one of the two means is undefined
            chosen, rejected = sums[0] / share, sums[1] / (1 - share)
            means = {"rewards/chosen": chosen, "rewards/rejected": rejected, "rewards/margins": chosen - rejected}
            figures |= means
        return figures


def log_ratios(policy: Policy, batch: Batch, columns: Sequence[int] = (0, 1)) -> Tensor:
    """Return log π(text) - log π_ref(text) for ``columns`` of each example, ``(num_examples, len(columns))``."""
    texts, rows = [pair[column] for pair in batch.observations for column in columns], (slice(None), list(columns))
    # Unfiltered, like the reference's log-probabilities, because the policy did not sample these texts.
    log_probs = policy.evaluate(texts, batch.actions[rows].flatten(0, 1)).raw_log_probs()  # (num_texts, num_tokens)
    ratios = log_probs.view_as(batch.log_probs[rows]) - batch.log_probs[rows]
    return (ratios * batch.more["inside"][rows]).sum(-1)


def _batch_of(policy: Policy, rollout: Rollout) -> Batch:
    """Return a batch in which each element is an example: a pair of adjacent columns of ``rollout``."""
    assert rollout.mask is not None

    def paired(tensor: Tensor) -> Tensor:
        return tensor.T.unflatten(0, (-1, 2)).to(policy.device)  # (num_examples, 2, num_tokens)

    examples = list(zip(rollout.observations[::2], rollout.observations[1::2], strict=True))
    work, zeros = policy.work(rollout.observations), torch.zeros(len(examples), device=policy.device)
    return Batch(
        observations=examples,
        actions=paired(rollout.actions),
        log_probs=paired(rollout.log_probs),  # of the reference
        values=zeros,
        advantages=zeros,
        returns=paired(rollout.rewards).sum(-1)[:, 0],
        weights=paired(rollout.mask).any(-1)[:, 0].float(),
        work=work and [Work(work[i].tokens + work[i + 1].tokens, i) for i in range(0, len(work), 2)],
        index=torch.arange(len(examples)),
        num_steps=len(examples),
        more={"inside": paired(rollout.dones.flip(0).cumsum(0).flip(0) > 0)},  # up to a text's last token
    )
