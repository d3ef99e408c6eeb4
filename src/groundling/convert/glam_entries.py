"""Entries of GLAM's and Lamorel's Hydra files: their counterparts in Groundling, and what is refused and why."""

from groundling.convert.entries import Format

OPEN = "???"  # Value of an entry that must be given on the command line
LLM = "lamorel_args.llm_args"
RL = "rl_script_args"
PROCESSES = "lamorel_args.distributed_setup_args.n_llm_processes"
STRINGS = f"{RL}.strings"  # Texts to be written: a file with this entry trains a writer
_ACCELERATE = "lamorel_args.accelerate_args"

_SAME = {
    f"{LLM}.model_path": "model.path",
    f"{RL}.seed": "seed",
    f"{RL}.name_environment": "world.env",
    f"{RL}.task": "world.env",
    f"{RL}.number_envs": "world.num_envs",
    f"{RL}.nbr_obs": "world.history",
    f"{RL}.language": "world.language",
    f"{RL}.num_steps": "training.steps",
    f"{RL}.frames_per_proc": "world.num_steps",
    f"{RL}.save_freq": "training.checkpoint_every",
    f"{RL}.number_episodes": "evaluation.episodes",
    f"{RL}.output_dir": "run_dir",
    f"{RL}.lr": "algorithm.args.learning_rate",
    f"{RL}.beta1": "algorithm.args.adam_beta1",
    f"{RL}.beta2": "algorithm.args.adam_beta2",
    f"{RL}.adam_eps": "algorithm.args.adam_epsilon",
    f"{RL}.discount": "algorithm.args.gamma",
    f"{RL}.gamma": "algorithm.args.gamma",
    f"{RL}.gae_lambda": "algorithm.args.gae_lambda",
    f"{RL}.lam": "algorithm.args.gae_lambda",
    f"{RL}.clip_eps": "algorithm.args.clip_range",
    f"{RL}.entropy_coef": "algorithm.args.entropy_coefficient",
    f"{RL}.max_grad_norm": "algorithm.args.max_grad_norm",
    f"{RL}.ppo_epochs": "algorithm.args.epochs",
    f"{RL}.gradient_batch_size": "algorithm.args.micro_batch_size",
    f"{RL}.template_test": "world.probes",
    f"{RL}.reward_shaping_beta": "algorithm.args.kl_coefficient",
}
_DERIVED = (
    *(f"{LLM}.{name}" for name in ("pretrained", "minibatch_size", "load_in_4bit")),
    *(f"{LLM}.parallelism.{name}" for name in ("use_gpu", "model_parallelism_size")),
    *(f"{RL}.{name}" for name in ("load_embedding", "use_action_heads", "use_lora", "lora_r", "lora_alpha")),
    *(f"{RL}.{name}" for name in ("epochs", "steps_per_epoch", "batch_size", "minibatch_size")),
    *(f"{RL}.{name}" for name in ("value_loss_coef", "action_space", "saving_path_logs", "loading_path")),
    *(f"{RL}.{name}" for name in ("name_experiment", "name_model", "strings")),
    PROCESSES,
)

MEMORY = "algorithm.args.micro_batch_size limits memory here, without changing results"
SAYCAN = (
    "SayCan plans with a model and trains nothing; its only call is LanguageModel.score, see docs/migration/lamorel.md"
)
TOKENS = f"it belongs to PPO on tokens, which {STRINGS} asks for"
_SCRIPT = "Groundling has its own training loop"
_LAUNCH = "torchrun or --slurm starts processes here, which find each other"
_TESTS = (
    "only the original's test script reads it; here `groundling evaluate RUN` plays the trained policy and the "
    "baselines zero-shot, random and expert (the bot), and keeps trajectories in RUN/samples"
)
_CLONED = f"{_TESTS}; for a cloned model set model.path to its folder"
_RENAMED = f"{_TESTS}; other action names: groundling evaluate RUN 'world.actions=[…]'"
_IGNORED = {
    "lamorel_args.log_level": "metrics.jsonl and TensorBoard receive all metrics",
    "lamorel_args.allow_subgraph_use_whith_gradient": _SCRIPT,
    "lamorel_args.gloo_timeout": "processes wait for hours for one that works alone, and if one dies, its launcher "
    "stops the others at once",
    "lamorel_args.updater_args": _SCRIPT,
    "lamorel_args.distributed_setup_args.n_rl_processes": _LAUNCH,
    f"{_ACCELERATE}.config_file": _LAUNCH,
    f"{_ACCELERATE}.machine_rank": _LAUNCH,
    f"{_ACCELERATE}.num_machines": _LAUNCH,
    f"{_ACCELERATE}.num_processes": _LAUNCH,
    f"{_ACCELERATE}.main_process_ip": _LAUNCH,
    f"{_ACCELERATE}.main_process_port": _LAUNCH,
    f"{LLM}.model_type": "the model's config says whether it is causal or an encoder-decoder",
    f"{LLM}.pre_encode_inputs": "each prompt is computed once for all its actions",
    f"{LLM}.seed": f"the run's seed, {RL}.seed, also initialises new weights",
    f"{LLM}.parallelism.synchronize_gpus_after_scoring": MEMORY,
    f"{LLM}.parallelism.empty_cuda_cache_after_scoring": MEMORY,
    f"{RL}.path": _SCRIPT,
    f"{RL}.max_episode_steps": "the original never reads it: each level has its own limit, as here "
    "(world.args={max_steps: 64} sets another)",
    f"{RL}.max_ep_len": "each level has its own limit, which its rewards depend on, also in Lamorel's example, which "
    "gains nothing from more steps (world.args={max_steps: 64} sets another limit)",
    f"{RL}.saving_path_model": "checkpoints are kept in the run's folder",
    f"{RL}.spm_path": f"the DRRN agent, which {PROCESSES}=0 trains, reads the tokens of policy.args.tokenizer: a "
    "bundled model, a folder or a hub id; docs/migration/glam.md converts such a file",
    f"{RL}.gradient_minibatch_size": MEMORY,
    f"{RL}.zero_shot": _TESTS,
    f"{RL}.random_agent": _TESTS,
    f"{RL}.bot": _TESTS,
    f"{RL}.get_example_trajectories": _TESTS,
    f"{RL}.im_learning": _CLONED,
    f"{RL}.im_path": _CLONED,
    f"{RL}.modified_action_space": _RENAMED,
    f"{RL}.new_action_space": _RENAMED,
    f"{RL}.kl_coef": TOKENS,
    f"{RL}.skip_ratio_spikes": TOKENS,
    f"{RL}.use_env_description": SAYCAN,
    f"{RL}.n_tasks": SAYCAN,
    f"{RL}.termination_str": SAYCAN,
    f"{RL}.plot_saycan": SAYCAN,
    f"{RL}.use_actions_in_env": SAYCAN,
}
FORMAT = Format("GLAM's and Lamorel's", _SAME, _DERIVED, _IGNORED, lists=(f"{RL}.action_space", STRINGS), strict=False)

# Entries of the language model and of PPO, which the original's DRRN agent does not read
NOT_DRRN = {key for key in FORMAT.known if key.startswith(f"{LLM}.") and not key.endswith(".use_gpu")} | {
    f"{RL}.{name}"
    for name in (
        *("frames_per_proc", "lr", "beta1", "beta2", "adam_eps", "discount", "gae_lambda", "clip_eps"),
        *("value_loss_coef", "entropy_coef", "max_grad_norm", "epochs", "batch_size", "reward_shaping_beta"),
        *("load_embedding", "use_action_heads", "use_lora", "lora_r", "lora_alpha", "loading_path"),
    )
}
# Entries of agents that act in an env, which Lamorel's PPO on tokens does not read
NOT_WRITER = {key for key, ours in _SAME.items() if ours.startswith("world.")} | {
    f"{RL}.{name}"
    for name in (
        *("action_space", "num_steps", "batch_size", "load_embedding", "use_action_heads"),
        *("reward_shaping_beta", "modified_action_space", "new_action_space"),
    )
}
TESTS = {  # Switches of the original's test script, by precedence, each with the command that replaces it
    "bot": "groundling evaluate expert world.env=ENV",
    "random_agent": "groundling evaluate random world.env=ENV",
    "im_learning": "groundling evaluate RUN --suite all, of a run of groundling train glam/bc",
    "get_example_trajectories": "groundling collect RUN --episodes N --output FOLDER",
    "modified_action_space": "groundling evaluate RUN 'world.actions=[…]'",
    "zero_shot": "groundling evaluate RUN --suite all, which also plays the untrained policy",
}
SHIPPED_ON = ("random_agent", "zero_shot")
"""Switches that are on in the file that the original ships for training, which does not read them."""
