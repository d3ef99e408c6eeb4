"""The entries of RL4LMs' YAML files, and what stands in their place here."""

from typing import Any

SECTIONS = ("tokenizer", "reward_fn", "datapool", "env", "alg", "train_evaluation")
POLICY = "alg.policy.args"
ROLLOUT = f"{POLICY}.generation_kwargs"
OPTIMIZER = f"{POLICY}.optimizer_kwargs"
PARALLEL = f"{POLICY}.apply_model_parallel"
EVALUATION = "train_evaluation"
TRAINING = "alg.training_args"

SAME = {
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
"""Entries that have a key of the same meaning here."""
MASK = {
    f"{POLICY}.mask_type": "policy.args.mask_type",
    f"{POLICY}.top_mask": "policy.args.top_mask",
    f"{POLICY}.min_tokens_to_keep": "policy.args.min_tokens_to_keep",
    f"{POLICY}.target_update_iterations": "algorithm.args.target_update_iterations",
}
"""NLPO's, of the same meaning."""
WORKED_OUT = {
    "reward_fn.id",
    "tokenizer.model_name",
    "tokenizer.max_length",
    "tokenizer.truncation_side",
    "env.n_envs",
    "env.args.max_episode_length",
    "env.args.terminate_on_eos",
    "env.args.context_start_token",
    "alg.args.n_steps",
    "alg.args.vf_coef",
    "alg.args.target_kl",
    "alg.kl_div.coeff",
    "alg.kl_div.target_kl",
    "alg.policy.id",
    f"{POLICY}.prompt_truncation_side",
    PARALLEL,
    f"{TRAINING}.lr_scheduler_type",
    f"{TRAINING}.logging_steps",
    "alg.generation_kwargs.post_processing_fn",
    f"{EVALUATION}.n_iters",
    f"{EVALUATION}.metrics",
}
"""Entries from which keys here are worked out, in the reader."""
OPEN = {
    "datapool.args.": "world.args.",
    "reward_fn.args.": "",
    f"{ROLLOUT}.": "",
    f"{OPTIMIZER}.": "",
    f"{EVALUATION}.generation_kwargs.": "evaluation.generation.",
    "alg.generation_kwargs.": "evaluation.generation.",
}
"""Sections whose entries are free, and where they go, to be checked there; "" where the reader does both."""
_PROMPTS = "a model reads prompts without padding here, or with padding that is masked"
_PLAIN = "whether a model is causal or an encoder-decoder is found out from the model itself"
_SCRIPT = "figures, checkpoints and samples go to the run's folder"
MEANINGLESS = {
    "tokenizer.padding_side": _PROMPTS,
    "tokenizer.pad_token_as_eos_token": _PROMPTS,
    "alg.model_type": _PLAIN,
    "alg.args.verbose": _SCRIPT,
    "alg.args.tensorboard_log": _SCRIPT,
    f"{TRAINING}.output_dir": _SCRIPT,
    f"{TRAINING}.save_steps": _SCRIPT,
    f"{TRAINING}.save_strategy": _SCRIPT,
    f"{TRAINING}.evaluation_strategy": _SCRIPT,
}
"""Entries that mean nothing here, and why or what replaces them."""
KNOWN = {*SAME, *MASK, *WORKED_OUT, *MEANINGLESS, *(prefix.rstrip(".") for prefix in OPEN)}

OPTIMIZER_MEANINGLESS = {
    "lr": "alg.args.learning_rate sets it at every update",
    "weight_decay": f"{POLICY}.weight_decay sets it",
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), "it changes no result"),
}
"""Arguments of AdamW that mean nothing here, and why."""
METRIC_MEANINGLESS = {
    "tokenizer_id": "a language model's perplexity is taken with its own tokenizer",
    "model_type": "a language model's perplexity is the one of the model that is trained, of its own type",
    "use_text_from_meta_data": "perplexity is of the references",
}
"""Arguments of metrics that mean nothing here."""

PPO_DEFAULTS = {
    "algorithm.args.epochs": 10,
    "algorithm.args.learning_rate": 3e-4,
    "algorithm.args.gae_lambda": 0.95,
    "algorithm.args.normalize_advantages": True,
    "algorithm.args.value_clip_range": None,
    "algorithm.args.entropy_coefficient": 0.0,
    "algorithm.args.adam_epsilon": 1e-8,
    "algorithm.args.weight_decay": 1e-6,
}
"""What Stable-Baselines3 and RL4LMs' AdamW take where a file is silent, and our defaults are others."""
_SAVED = {"training.checkpoint_every": 20}
"""What the original's trainer takes where a file names no save_every."""
SUPERVISED_DEFAULTS = {
    "algorithm.args.minibatch_size": 8,
    "algorithm.args.learning_rate": 5e-5,
    "algorithm.args.warmup": 0.0,
    "training.epochs": 3,
}
"""The same of Transformers' Trainer."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": PPO_DEFAULTS | _SAVED,
    "nlpo": PPO_DEFAULTS | _SAVED,
    "a2c": {"algorithm.args.learning_rate": 7e-4} | _SAVED,
    "trpo": _SAVED,
    "supervised": SUPERVISED_DEFAULTS,
}
"""By alg.id, which is the algorithm's id here too."""
