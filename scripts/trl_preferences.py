"""Record TRL's DPO and KTO losses and gradients for random log-probabilities (tests/algorithms/test_preferences.py).

    pip install --target trl --no-deps trl==1.16.0
    PYTHONPATH=trl python -m scripts.trl_preferences tests/algorithms/trl_preferences.jsonl

The losses are computed with the trainers' own ``_compute_loss`` and a model that returns the given log-probabilities.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

_LENGTHS = (5, 2, 4, 7, 1, 6, 3, 5)  # tokens of each text
_WIDTH = max(_LENGTHS) + 1  # including the prompt, which is one token
_DPO: list[dict[str, Any]] = [
    {"loss_type": "sigmoid", "beta": 0.1},
    {"loss_type": "sigmoid", "beta": 0.7},
    {"loss_type": "robust", "beta": 0.3, "label_smoothing": 0.2},
    {"loss_type": "hinge", "beta": 0.3},
    {"loss_type": "ipo", "beta": 0.4},
]
_KTO: list[dict[str, Any]] = [{"beta": 0.1}, {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.8}]


class _Model(nn.Module):
    """Returns given log-probabilities per token, ``(num_texts, _WIDTH - 1)``."""

    is_gradient_checkpointing = False

    def __init__(self, *log_probs: Tensor) -> None:
        super().__init__()
        self.calls = list(log_probs)

    def forward(self, **_: Any) -> Any:
        log_probs = self.calls.pop(0)
        nothing = torch.zeros_like(log_probs)
        return SimpleNamespace(log_probs=log_probs, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())


class _Accelerator:
    device = torch.device("cpu")
    gather = gather_for_metrics = staticmethod(lambda value: value)


def _bare(trainer: type, model: Any, reference: Any, **settings: Any) -> Any:
    made: Any = trainer.__new__(trainer)
    usual = {
        "accelerator": _Accelerator(),
        "aux_loss_enabled": False,
        "precompute_ref_logps": False,
        "args": SimpleNamespace(gradient_checkpointing_kwargs=None),
        "ref_model": reference,
        "model": model,
        "_metrics": {"train": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    for name, value in (usual | settings).items():
        setattr(made, name, value)
    return made


def _inputs() -> dict[str, Tensor]:
    mask = torch.tensor([[0] + [1] * length + [0] * (_WIDTH - 1 - length) for length in _LENGTHS])
    ids = torch.ones_like(mask)
    return {"input_ids": ids, "attention_mask": ids, "completion_mask": mask}


def _log_probs(generator: torch.Generator) -> Tensor:
    mask = _inputs()["completion_mask"][:, 1:]
    return -3 * torch.rand(mask.shape, dtype=torch.float64, generator=generator) * mask


def _dpo(settings: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    from trl.trainer.dpo_trainer import DPOTrainer

    policy, reference = _log_probs(generator).requires_grad_(), _log_probs(generator)
    more = {"ld_alpha": None, "f_divergence_type": "reverse_kl", "use_weighting": False, "label_smoothing": 0.0}
    more |= {"loss_types": [settings["loss_type"]], "loss_weights": [1.0]} | settings
    model = _Model(policy)
    loss = _bare(DPOTrainer, model, _Model(reference), **more)._compute_loss(model, _inputs(), False)
    return _row(settings, loss, policy, reference)


def _kto(settings: dict[str, Any], generator: torch.Generator, shift: float) -> dict[str, Any]:
    from trl.trainer.kto_trainer import KTOTrainer

    policy, reference = _log_probs(generator).requires_grad_(), _log_probs(generator)
    mismatched, of_reference = _log_probs(generator) + shift, _log_probs(generator)
    label = torch.tensor([True, False, False, True, True, False, True, False])
    inputs = _inputs()
    inputs |= {f"KL_{name}": value for name, value in inputs.items()} | {"label": label}
    more = {"desirable_weight": 1.0, "undesirable_weight": 1.0, "calculate_KL": True, "loss_type": "kto"} | settings
    model, frozen = _Model(mismatched, policy), _Model(of_reference, reference)
    loss = _bare(KTOTrainer, model, frozen, **more)._compute_loss(model, inputs, False)
    mismatch = (mismatched.sum(1) - of_reference.sum(1)).tolist()
    return _row(settings, loss, policy, reference) | {"label": label.int().tolist(), "mismatched": mismatch}


def _row(settings: dict[str, Any], loss: Tensor, policy: Tensor, reference: Tensor) -> dict[str, Any]:
    loss.backward()
    assert policy.grad is not None
    return {
        "settings": settings,
        "log_ratios": (policy.detach().sum(1) - reference.sum(1)).tolist(),
        "lengths": list(_LENGTHS),
        "loss": loss.item(),
        "gradient": policy.grad[:, 0].tolist(),  # the same for all tokens of a text
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    generator = torch.Generator().manual_seed(0)
    rows = [_dpo(settings, generator) for settings in _DPO]
    rows += [_kto(settings, generator, shift) for settings in _KTO for shift in (-1.0, 0.5)]
    parser.parse_args().output.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
