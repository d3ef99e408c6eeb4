"""The entries of GLAM's and Lamorel's Hydra files, and what stands in their place here."""

SECTIONS = ("lamorel_args.", "rl_script_args.")
OPEN = "???"
"""What the original's files write for an entry that must be given."""
LLM = "lamorel_args.llm_args"
RL = "rl_script_args"
PROCESSES = "lamorel_args.distributed_setup_args.n_llm_processes"
STRINGS = f"{RL}.strings"
"""What is to be said: a file that has it trains a writer."""

SAME = {
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
"""Entries that have a key of the same meaning here."""
WORKED_OUT = {
    f"{LLM}.pretrained": "model.init",
    f"{LLM}.minibatch_size": "algorithm.args.micro_batch_size",
    f"{LLM}.load_in_4bit": "model.load_in_4bit",
    f"{LLM}.parallelism.use_gpu": "device",
    f"{LLM}.parallelism.model_parallelism_size": "model.device_map",
    PROCESSES: "policy.id",
    f"{RL}.load_embedding": "model.init",
    f"{RL}.use_action_heads": "policy.id",
    f"{RL}.use_lora": "model.lora",
    f"{RL}.lora_r": "model.lora",
    f"{RL}.lora_alpha": "model.lora",
    f"{RL}.epochs": "algorithm.args.epochs",
    f"{RL}.steps_per_epoch": "world.num_steps",
    f"{RL}.batch_size": "algorithm.args.minibatch_size",
    f"{RL}.minibatch_size": "algorithm.args.minibatch_size",
    f"{RL}.value_loss_coef": "algorithm.args.value_coefficient",
    f"{RL}.action_space": "world.actions",
    f"{RL}.saving_path_logs": "run_dir",
    f"{RL}.name_experiment": "name",
    f"{RL}.name_model": "name",
    f"{RL}.loading_path": "model.path",
    STRINGS: "world.args",
}
"""Entries from which the keys here are worked out, below."""
_LAUNCH = "processes are started by torchrun or --slurm here, and find each other by themselves"
MEMORY = "memory is what algorithm.args.micro_batch_size decides here, and it changes no result"
_KINDS = "whether a model is causal or an encoder-decoder is found out from the model itself"
_SCRIPT = "the training loop is groundling's own"
_TESTS = (
    "the original's test script reads it; here `groundling evaluate RUN` plays the trained policy and the "
)
_TESTS += "baselines zero-shot, random and expert (the bot), and keeps trajectories in RUN/samples"
SAYCAN = (
    "SayCan plans with a model and trains nothing; its one call is LanguageModel.score, see "
    "docs/migration/lamorel.md"
)
TOKENS = f"it belongs to PPO on tokens, which {STRINGS} asks for"
MEANINGLESS = {
    "lamorel_args.log_level": "figures go to metrics.jsonl and TensorBoard, at one level of detail",
    "lamorel_args.allow_subgraph_use_whith_gradient": _SCRIPT,
    "lamorel_args.gloo_timeout": "processes wait for hours for one that works alone, and where one dies its launcher "
    "ends the others at once",
    "lamorel_args.updater_args": _SCRIPT,
    "lamorel_args.distributed_setup_args.n_rl_processes": _LAUNCH,
    "lamorel_args.accelerate_args.config_file": _LAUNCH,
    "lamorel_args.accelerate_args.machine_rank": _LAUNCH,
    "lamorel_args.accelerate_args.num_machines": _LAUNCH,
    "lamorel_args.accelerate_args.num_processes": _LAUNCH,
    "lamorel_args.accelerate_args.main_process_ip": _LAUNCH,
    "lamorel_args.accelerate_args.main_process_port": _LAUNCH,
    f"{LLM}.model_type": _KINDS,
    f"{LLM}.pre_encode_inputs": "each prompt is always computed once for all its actions",
    f"{LLM}.seed": "the run's seed, rl_script_args.seed, also draws new weights",
    f"{LLM}.parallelism.synchronize_gpus_after_scoring": MEMORY,
    f"{LLM}.parallelism.empty_cuda_cache_after_scoring": MEMORY,
    f"{RL}.path": _SCRIPT,
    f"{RL}.max_episode_steps": "the original never reads it: its levels have limits of their own, as here "
    "(world.args={max_steps: 64} sets another)",
    f"{RL}.max_ep_len": "levels have limits of their own, which their rewards count with, also in Lamorel's example: "
    "it gains nothing from more steps than those (world.args={max_steps: 64} sets another limit)",
    f"{RL}.saving_path_model": "checkpoints are kept in the run's folder",
    f"{RL}.spm_path": "the DRRN agent, which lamorel_args.distributed_setup_args.n_llm_processes=0 trains, reads the "
    "tokens of policy.args.tokenizer: a bundled model's, a folder or a hub id; docs/migration/glam.md converts such a "
    "file",
    f"{RL}.gradient_minibatch_size": MEMORY,
    f"{RL}.zero_shot": _TESTS,
    f"{RL}.random_agent": _TESTS,
    f"{RL}.bot": _TESTS,
    f"{RL}.get_example_trajectories": _TESTS,
    f"{RL}.im_learning": f"{_TESTS}; for a cloned model set model.path to its folder",
    f"{RL}.im_path": f"{_TESTS}; for a cloned model set model.path to its folder",
    f"{RL}.modified_action_space": f"{_TESTS}; other action names: groundling evaluate RUN 'world.actions=[…]'",
    f"{RL}.new_action_space": f"{_TESTS}; other action names: groundling evaluate RUN 'world.actions=[…]'",
    f"{RL}.kl_coef": TOKENS,
    f"{RL}.skip_ratio_spikes": TOKENS,
    f"{RL}.use_env_description": SAYCAN,
    f"{RL}.n_tasks": SAYCAN,
    f"{RL}.termination_str": SAYCAN,
    f"{RL}.plot_saycan": SAYCAN,
    f"{RL}.use_actions_in_env": SAYCAN,
}
"""Entries that mean nothing here, and why."""
KNOWN = {*SAME, *WORKED_OUT, *MEANINGLESS}

NOT_DRRNS = {key for key in KNOWN if key.startswith(f"{LLM}.") and not key.endswith(".use_gpu")} | {
    f"{RL}.{name}"
    for name in (
        *("frames_per_proc", "lr", "beta1", "beta2", "adam_eps", "discount", "gae_lambda", "clip_eps"),
        *("value_loss_coef", "entropy_coef", "max_grad_norm", "epochs", "batch_size", "reward_shaping_beta"),
        *("load_embedding", "use_action_heads", "use_lora", "lora_r", "lora_alpha", "loading_path"),
    )
}
"""Entries of the language model and of PPO, which the original's DRRN agent never reads."""
OF_WRITERS = (
    f"{RL}.max_ep_len",
    f"{RL}.kl_coef",
    f"{RL}.skip_ratio_spikes",
    f"{RL}.steps_per_epoch",
    STRINGS,
)
"""Entries that mean something else, or something at all, where a writer is trained."""
NOT_WRITERS = {key for key, ours in SAME.items() if ours.startswith("world.")} | {
    f"{RL}.{name}"
    for name in (
        "action_space",
        "num_steps",
        "batch_size",
        "load_embedding",
        "use_action_heads",
        "reward_shaping_beta",
        "modified_action_space",
        "new_action_space",
    )
}
"""Entries of agents that act in an env, which Lamorel's file of PPO on tokens never reads."""
TESTS = {
    "bot": "groundling evaluate expert world.env={env}{episodes}",
    "random_agent": "groundling evaluate random world.env={env}{episodes}",
    "im_learning": "groundling evaluate RUN --suite all{episodes} (RUN: a run of groundling train glam/bc "
    "world.dataset=FOLDER)",
    "get_example_trajectories": "groundling collect {run}{episodes} --output FOLDER",
    "modified_action_space": "groundling evaluate {run} 'world.actions=[{actions}]'{episodes}",
    "zero_shot": "groundling evaluate {run} --suite all{episodes}, which plays the untrained policy beside the trained "
    "one",
}
"""The switches of the original's test script, in the order in which they decide, and what does it here."""
SHIPPED_ON = ("random_agent", "zero_shot")
"""Those that are on in the file that the original ships for training on one machine; its training never reads them."""

NUMBERS = (
    "seed",
    "world.num_envs",
    "world.num_steps",
    "world.history",
    "world.args.",
    "world.probes",
    "training.",
    "evaluation.",
    "algorithm.args.",
)
"""Keys whose values are numbers; the original's files write some of them as strings."""
