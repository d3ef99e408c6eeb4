"""Write tests/data/trl_grpo.json, which contains losses and gradients of TRL 1.16's GRPOTrainer on random rollouts.

pip install --no-deps --target trl trl==1.16.0 && PYTHONPATH=trl python -m scripts.trl_grpo

TRL's own code is executed: `_compute_loss`, and the statements of `_generate_and_score_completions` that mask
truncated completions and compute advantages. Only the model is replaced, by log-probabilities and entropies that
depend on one parameter per token. The test that reads the file does not need TRL.
"""

import ast
import inspect
import json
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from trl.trainer import grpo_trainer

FILE = Path(__file__).parents[1] / "tests" / "data" / "trl_grpo.json"
GROUP, LENGTH, MINIBATCH = 4, 8, 6  # texts per prompt, max_completion_length, texts per optimizer step
CASES: dict[str, dict[str, Any]] = {  # arguments of GRPOConfig; TRL's default loss_type is "dapo"
    "GRPO": {"loss_type": "grpo"},
    "GRPO, KL": {"loss_type": "grpo", "beta": 0.04},
    "GRPO, clip-higher": {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.28},
    "GRPO, truncated texts masked": {"loss_type": "grpo", "beta": 0.04, "mask_truncated_completions": True},
    "BNPO": {"loss_type": "bnpo", "scale_rewards": "batch"},
    "DAPO": {"loss_type": "dapo", "epsilon_high": 0.28, "mask_truncated_completions": True},
    "DAPO, KL, entropy": {"loss_type": "dapo", "beta": 0.1, "entropy_coef": 0.01},
    "Dr. GRPO": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "Dr. GRPO, KL, entropy": {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.1, "entropy_coef": 0.01},
    "GSPO": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 0.03,
        "epsilon_high": 0.04,
        "beta": 0.04,
    },
    "GSPO, mean over tokens": {"loss_type": "bnpo", "importance_sampling_level": "sequence", "epsilon": 0.05},
    "CISPO": {"loss_type": "cispo", "epsilon_high": 5.0},
    "CISPO, low bound": {"loss_type": "cispo", "epsilon_high": 1.1, "beta": 0.04},
}
DEFAULTS = {
    "epsilon": 0.2,
    "epsilon_high": None,
    "beta": 0.0,
    "entropy_coef": 0.0,
    "scale_rewards": "group",
    "importance_sampling_level": "token",
    "mask_truncated_completions": False,
}


def rollout() -> dict[str, torch.Tensor]:
    """Return twelve texts of different lengths, some without an end token (1), and random numbers for each token."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 100).round() / 100

    old = -random(12, LENGTH).abs() - 0.5
    lengths = torch.tensor([3, 8, 1, 8, 5, 8, 2, 7, 8, 4, 6, 8])
    ends = torch.tensor([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0]).bool()  # three of those with length 8 are truncated
    return {
        "old": old,
        "now": old + 0.3 * random(12, LENGTH),
        "reference": old + 0.2 * random(12, LENGTH),
        "entropies": random(12, LENGTH).abs(),
        "rewards": torch.cat([random(4), torch.ones(4), random(4)]),  # the rewards of the second group are equal
        "lengths": lengths,
        "ends": ends,
    }


def statement(begins: str) -> Any:
    """Compile the statement in `_generate_and_score_completions` that begins with the given text."""
    method = grpo_trainer.GRPOTrainer._generate_and_score_completions
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    (found,) = (one for one in tree.body[0].body if ast.unparse(one).startswith(begins))
    return compile(ast.Module([found], []), grpo_trainer.__file__, "exec")


def run(given: dict[str, torch.Tensor], options: dict[str, Any]) -> dict[str, Any]:
    """Return the advantages, and each minibatch's loss and its gradient with respect to every token."""
    trainer = made_trainer(options)
    mask = (torch.arange(LENGTH) < given["lengths"][:, None]).int()
    ids = [[5] * (int(n) - 1) + [1 if end else 5] for n, end in zip(given["lengths"], given["ends"], strict=True)]
    names: dict[str, Any] = {
        **vars(grpo_trainer),
        "self": trainer,
        "completion_ids_list": ids,
        "completion_mask": mask,
        "tool_mask": None,
        "device": "cpu",
        "rewards_per_func": given["rewards"][:, None],
        "num_generations": GROUP,
        "unscorable_mask": torch.zeros(12, dtype=torch.bool),
    }
    exec(statement("if self.mask_truncated_completions"), names)
    exec(statement("if self.multi_objective_aggregation"), names)
    mask, advantages = names["completion_mask"], names["advantages"]
    moved = torch.zeros(12, LENGTH, dtype=torch.float64, requires_grad=True)
    losses = []
    for rows in torch.arange(12).split(MINIBATCH):
        trainer._get_per_token_logps_and_entropies = lambda *args, rows=rows, **kwargs: (
            given["now"][rows] + moved[rows],
            given["entropies"][rows] + 0.5 * moved[rows],
            None,
        )
        inputs = {
            "prompt_ids": mask[rows, :0],
            "prompt_mask": mask[rows, :0],
            "completion_ids": mask[rows],
            "completion_mask": mask[rows],
            "advantages": advantages[rows],
            "num_items_in_batch": mask.sum(),
            "old_per_token_logps": given["old"][rows],
            "ref_per_token_logps": given["reference"][rows],
        }
        loss = grpo_trainer.GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
        loss.backward()
        losses.append(loss.item())
    return {"advantages": rounded(advantages), "losses": losses, "gradient": rounded(moved.grad)}


def made_trainer(options: dict[str, Any]) -> Any:
    """Return the GRPOTrainer attributes that the executed statements read."""
    chosen = DEFAULTS | options
    config = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=12 // MINIBATCH)
    processes = SimpleNamespace(
        num_processes=1, sync_gradients=True, reduce=lambda x, reduction: x, gather=lambda x: x.view(-1)
    )
    return SimpleNamespace(
        args=config,
        accelerator=processes,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        epsilon_low=chosen["epsilon"],
        epsilon_high=chosen["epsilon"] if chosen["epsilon_high"] is None else chosen["epsilon_high"],
        eos_token_ids=[1],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        reward_weights=torch.ones(1),
        multi_objective_aggregation="sum_then_normalize",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=chosen["entropy_coef"] != 0,
        _metrics={"train": defaultdict(list)},
        **{name: value for name, value in chosen.items() if not name.startswith("epsilon")},
    )


def rounded(x: torch.Tensor) -> Any:
    """Return nested lists of numbers with nine decimals."""
    return ((x.double() * 1e9).round() / 1e9).tolist()


def main() -> None:
    given = rollout()
    cases = [{"name": name, "config": config, **run(given, config)} for name, config in CASES.items()]
    rows = ",\n".join(json.dumps(case) for case in cases)
    inputs = json.dumps({name: rounded(x) if x.is_floating_point() else x.tolist() for name, x in given.items()})
    FILE.write_text(f'{{"trl": "{trl.__version__}", "rollout": {inputs}, "cases": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
