"""Entries of RL4LMs' YAML files: their counterparts in Groundling, and those without effect."""

from typing import Any

from groundling.convert.entries import Format

POLICY = "alg.policy.args"
ROLLOUT = f"{POLICY}.generation_kwargs"
OPTIMIZER = f"{POLICY}.optimizer_kwargs"
EVALUATION = "train_evaluation"
TRAINING = "alg.training_args"

_SAME = {
    "datapool.id": "world.pool",
    "env.args.max_prompt_length": "world.max_prompt_length",
    "env.args.prompt_truncation_side": "world.prompt_truncation_side",
    "alg.id": "algorithm.id",
    "alg.args.learning_rate": "algorithm.args.learning_rate",
    "alg.args.n_epochs": "algorithm.args.epochs",
    "alg.args.batch_size": "algorithm.args.minibatch_size",
    "alg.args.gamma": "algorithm.args.gamma",
    "alg.args.gae_lambda": "algorithm.args.gae_lambda",
    "alg.args.clip_range": "algorithm.args.clip_range",
    "alg.args.clip_range_vf": "algorithm.args.value_clip_range",
    "alg.args.ent_coef": "algorithm.args.entropy_coefficient",
    "alg.args.max_grad_norm": "algorithm.args.max_grad_norm",
    "alg.args.normalize_advantage": "algorithm.args.normalize_advantages",
    "alg.args.rms_prop_eps": "algorithm.args.rms_epsilon",
    "alg.args.cg_max_steps": "algorithm.args.conjugate_gradient_steps",
    "alg.args.cg_damping": "algorithm.args.damping",
    "alg.args.line_search_max_iter": "algorithm.args.line_search_steps",
    "alg.args.line_search_shrinking_factor": "algorithm.args.line_search_factor",
    "alg.args.n_critic_updates": "algorithm.args.critic_epochs",
    "alg.args.seed": "seed",
    "alg.args.device": "device",
    "alg.kl_div.norm_reward": "algorithm.args.normalize_rewards",
    f"{POLICY}.model_name": "model.path",
    "alg.model_name": "model.path",
    f"{POLICY}.weight_decay": "algorithm.args.weight_decay",
    f"{TRAINING}.per_device_train_batch_size": "algorithm.args.minibatch_size",
    f"{TRAINING}.learning_rate": "algorithm.args.learning_rate",
    f"{TRAINING}.weight_decay": "algorithm.args.weight_decay",
    f"{TRAINING}.warmup_ratio": "algorithm.args.warmup",
    f"{TRAINING}.max_grad_norm": "algorithm.args.max_grad_norm",
    f"{TRAINING}.num_train_epochs": "training.epochs",
    f"{TRAINING}.save_total_limit": "training.keep_checkpoints",
    f"{TRAINING}.seed": "seed",
    f"{EVALUATION}.eval_batch_size": "evaluation.batch_size",
    f"{EVALUATION}.eval_every": "evaluation.every",
    f"{EVALUATION}.save_every": "training.checkpoint_every",
}
MASK = {  # Entries of NLPO's mask with a key of the same meaning
    f"{POLICY}.mask_type": "policy.args.mask_type",
    f"{POLICY}.top_mask": "policy.args.top_mask",
    f"{POLICY}.min_tokens_to_keep": "policy.args.min_tokens_to_keep",
    f"{POLICY}.target_update_iterations": "algorithm.args.target_update_iterations",
}
_DERIVED = (
    *MASK,
    *("reward_fn.id", "tokenizer.model_name", "tokenizer.max_length", "tokenizer.truncation_side", "env.n_envs"),
    *(f"env.args.{name}" for name in ("max_episode_length", "terminate_on_eos", "context_start_token")),
    *("alg.args.n_steps", "alg.args.vf_coef", "alg.args.target_kl", "alg.kl_div.coeff", "alg.kl_div.target_kl"),
    *("alg.policy.id", f"{POLICY}.prompt_truncation_side"),
    *(f"{TRAINING}.lr_scheduler_type", f"{TRAINING}.logging_steps"),
    *("alg.generation_kwargs.post_processing_fn", f"{EVALUATION}.n_iters", f"{EVALUATION}.metrics"),
)
FREE = {  # Sections with arbitrary entries, each with its counterpart, which checks them; None: the reader does both
    "datapool.args": "world.args",
    "reward_fn.args": None,
    ROLLOUT: None,
    OPTIMIZER: None,
    f"{EVALUATION}.generation_kwargs": "evaluation.generation",
    "alg.generation_kwargs": "evaluation.generation",
}
_PROMPTS = "prompts are not padded here, or padding is masked"
_SCRIPT = "metrics, checkpoints and samples are written to the run's folder"
_IGNORED = {
    "tokenizer.padding_side": _PROMPTS,
    "tokenizer.pad_token_as_eos_token": _PROMPTS,
    "alg.model_type": "the model's config says whether it is causal or an encoder-decoder",
    "alg.args.verbose": _SCRIPT,
    "alg.args.tensorboard_log": _SCRIPT,
    f"{POLICY}.apply_model_parallel": "model.device_map=auto spreads a model over the GPUs of a process",
    **dict.fromkeys(
        (f"{TRAINING}.{name}" for name in ("output_dir", "save_steps", "save_strategy", "evaluation_strategy")),
        _SCRIPT,
    ),
}
FORMAT = Format("RL4LMs", _SAME, _DERIVED, _IGNORED, free=tuple(FREE), lists=(f"{EVALUATION}.metrics",))

OPTIMIZER_IGNORED = {  # Arguments of AdamW without effect here, with the reason
    "lr": "alg.args.learning_rate sets it at every update",
    "weight_decay": f"{POLICY}.weight_decay sets it",
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), "it changes no result"),
}
METRIC_IGNORED = {  # Arguments of metrics without effect here, with the reason
    "tokenizer_id": "perplexity is measured with the language model's own tokenizer",
    "model_type": "perplexity is that of the trained model, of its own type",
    "use_text_from_meta_data": "perplexity is of the references",
}

_PPO = {
    "algorithm.args.epochs": 10,
    "algorithm.args.learning_rate": 3e-4,
    "algorithm.args.gae_lambda": 0.95,
    "algorithm.args.normalize_advantages": True,
    "algorithm.args.value_clip_range": None,
    "algorithm.args.entropy_coefficient": 0.0,
    "algorithm.args.adam_epsilon": 1e-8,
    "algorithm.args.weight_decay": 1e-6,
    "training.checkpoint_every": 20,
}
# Defaults of Stable-Baselines3, RL4LMs and Transformers' Trainer that differ from ours, by ``alg.id``
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": _PPO,
    "nlpo": _PPO,
    "a2c": {"algorithm.args.learning_rate": 7e-4, "training.checkpoint_every": 20},
    "trpo": {"training.checkpoint_every": 20},
    "supervised": {
        "algorithm.args.minibatch_size": 8,
        "algorithm.args.learning_rate": 5e-5,
        "algorithm.args.warmup": 0.0,
        "training.epochs": 3,
    },
}
