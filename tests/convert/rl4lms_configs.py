"""RL4LMs' 44 YAML files, rebuilt from their entries: what a task's files share, and one line for what a file has."""

# ruff: noqa: E501  (a line is a file)

from typing import Any

Entries = dict[str, Any]

_ROUGE_L_MAX = {
    "max_n": 4, "limit_length": True, "length_limit": 100, "length_limit_type": "words", "apply_avg": True,
    "apply_best": True, "alpha": 0.5, "weight_factor": 1.2, "stemming": True,
}  # fmt: skip


def _metrics(names: str, language: str = "en") -> list[Entries]:
    """Metrics by their ids; ``rouge*`` reads several references. Some have no ``args`` at all, others empty ones."""
    args: dict[str, Entries] = {
        "bert_score": {"language": language},
        "rouge*": {"use_single_ref": False},
        "sacre_bleu": {"tokenize": "intl"},
        "rouge_l_max": _ROUGE_L_MAX,
        "increasing_numbers": {"min_tokens": 20},
        "perplexity128": {"tokenizer_id": "gpt2", "stride": 128, "model_type": "causal"},
        "perplexity512": {"tokenizer_id": "gpt2", "stride": 512, "model_type": "causal"},
        "learned_reward": {"model_name": "lvwerra/distilbert-imdb", "label_ix": 1, "batch_size": 100},
    }
    ids = {"rouge*": "rouge", "perplexity128": "causal_perplexity", "perplexity512": "causal_perplexity"}
    bare = ("rouge", "cider", "spice", "intent_accuracy")
    return [
        {"id": name} if name in bare else {"id": ids.get(name, name), "args": dict(args.get(name, {}))}
        for name in names.split()
    ]


def _generation(text: str) -> Entries:
    """``s`` samples; k top_k, m min_length, n max_new_tokens, b num_beams, l length_penalty, t temperature."""
    names = {"k": "top_k", "m": "min_length", "n": "max_new_tokens", "b": "num_beams", "l": "length_penalty", "t": "temperature"}  # fmt: skip
    made: Entries = {"do_sample": True} if text.startswith("s") else {}
    for word in text.split():
        if word != "s":
            made[names[word[0]]] = float(word[1:]) if "." in word else int(word[1:])
    return made


_INTENT = {"id": "intent_accuracy"}
_COMMON = "meteor rouge bleu bert_score cider spice diversity"
_SENTIMENT = {
    "model_name": "lvwerra/distilbert-imdb", "label_ix": 1, "include_prompt_for_eval": True,
}  # fmt: skip
_NUMBERS: Entries = {
    "pool": ("dummy_pool", {"n_samples": 50, "prompt": "<|endoftext|>"}), "lengths": (5, 20), "metrics": _metrics("increasing_numbers"),
    "reward": ("increasing_numbers", {"min_tokens": 20}), "eval_batch": 256,
}  # fmt: skip
TASKS: dict[str, Entries] = {
    "common_gen": {
        "pool": ("commongen", {"concept_end_token": ".", "concept_separator_token": " ", "prefix": "generate a sentence with: "}),
        "metrics": _metrics(_COMMON), "eval_batch": 100, "lengths": (20, 20), "start": 0,
    },
    "dialog": {
        "pool": ("daily_dialog", {"context_size": 5}), "eval_batch": 32, "lengths": (128, 20),
        "metrics": _metrics("intent_accuracy perplexity128 diversity meteor rouge bleu bert_score sacre_bleu"),
    },
    "imdb_text_continuation": {
        "pool": ("imdb", {"seed": 42}), "eval_batch": 256, "lengths": (64, 48), "tokenizer": "lvwerra/gpt2-imdb",
        "reward": ("learned_reward", _SENTIMENT), "metrics": _metrics("learned_reward perplexity512 diversity"),
    },
    "iwslt2017": {
        "pool": ("iwslt2017en_de", {"prompt_prefix": "translate English to German: "}), "eval_batch": 50, "lengths": (128, 128),
        "reward": ("ter", None), "metrics": _metrics("meteor rouge bleu bert_score bleu sacre_bleu ter chrf diversity", "de"), "start": 0,
    },
    "narrative_qa": {
        "pool": ("narrative_qa", None), "eval_batch": 50, "lengths": (512, 50), "start": 0,
        "reward": ("rouge_l_max", _ROUGE_L_MAX), "metrics": _metrics("meteor rouge* bleu bert_score rouge_l_max diversity"),
    },
    "summarization": {
        "pool": ("cnn_daily_mail", {"prompt_prefix": "Summarize: "}), "eval_batch": 100, "lengths": (512, 100), "start": 0,
        "reward": ("meteor", None), "metrics": _metrics("meteor rouge bleu bert_score diversity"),
    },
    "synthetic_generate_dates": {
        "pool": ("dummy_pool", {"n_samples": 50, "prompt": "<|endoftext|>"}), "lengths": (5, 30), "eval_batch": 256,
        "reward": ("sentences_with_dates", {}), "metrics": _metrics("dates"),
    },
    "synthetic_generate_increasing_numbers": _NUMBERS,
    "totto": {
        "pool": ("totto", {"representation": "subtable"}), "eval_batch": 100, "lengths": (512, 50), "start": 0,
        "reward": ("meteor", None), "metrics": _metrics("meteor parent_totto rouge* bleu_totto bert_score diversity"),
    },
}  # fmt: skip
"""What the files of a task have in common: datapool, prompt and episode length, reward, metrics, start token."""

_LEARNED = {"mask": (0.9, 20)}
_KEEP = {"mask": (0.9, 20), "keep": 100}
_RIGHT = {"side": "right"}
_REPEAT = ("meteor", {"shaping_fn": "common_gen_repeat_penalty"})


def _intent(intent: float, auto: float) -> Entries:
    return {"reward": ("intent_accuracy", {"intent_coeff": intent, "auto_coeff": auto})}


# By name: alg, model, (n_envs, n_steps), batch, lr, ent, (KL coefficient, target), rollout and evaluation generation
# (None: as in rollouts), (iterations, eval, save), and what else differs from the task's files.
ONLINE: dict[str, tuple[Any, ...]] = {
    "common_gen/t5_nlpo": ("nlpo", "t5-base", (10, 128), 64, 2e-6, None, (0.001, 2.0), "s k50 m10 n20", "s k50 m10 n20", (100, 10, 20), {**_LEARNED, "reward": _REPEAT, "lengths": (15, 20), "metrics": _metrics("meteor rouge bleu bert_score diversity")}),
    "common_gen/t5_nlpo_on_supervised": ("nlpo", "rajkumarrrk/t5-common-gen", (10, 128), 64, 2e-6, 0.01, (0.01, 1.0), "s k50 m5 n20", "b5 m5 n20", (100, 5, 20), {**_LEARNED, **_RIGHT, "reward": ("meteor", None), "eval_batch": 50}),
    "common_gen/t5_ppo": ("ppo", "t5-base", (10, 256), 64, 2e-6, 0.01, (0.001, 2.0), "s k0 m5 n20", "b5 m5 n20", (200, 20, 1), {**_RIGHT, "reward": _REPEAT, "eval_batch": 20}),
    "common_gen/t5_ppo_on_supervised": ("ppo", "rajkumarrrk/t5-common-gen", (10, 128), 64, 2e-6, 0.01, (0.01, 1.0), "s k50 m5 n20", "b5 m5 n20", (100, 5, 20), {**_RIGHT, "reward": ("common_gen_preference_model", {"device": "cpu", "batch_size": 5, "model_type": "11b"}), "eval_batch": 50}),
    "dialog/gpt2_nlpo": ("nlpo", "gpt2", (10, 128), 64, 1e-6, None, (0.2, 0.5), "s k20 m2 n20", "s k20 m2 n20", (100, 5, 10), {**_KEEP, **_intent(0.75, 0.25)}),
    "dialog/gpt2_nlpo_on_supervised": ("nlpo", "rajkumarrrk/gpt2-fine-tuned-on-daily-dialog", (10, 128), 64, 1e-6, None, (0.2, 0.05), "s k20 m2 n20", "s k20 m2 n20", (50, 5, 10), {**_KEEP, **_intent(0.25, 0.75)}),
    "dialog/gpt2_ppo": ("ppo", "gpt2", (10, 128), 64, 1e-6, None, (0.2, 0.5), "s k20 m2 n20", "s k20 m2 n20", (50, 5, 10), _intent(0.75, 0.25)),
    "dialog/gpt2_ppo_on_supervised": ("ppo", "rajkumarrrk/gpt2-fine-tuned-on-daily-dialog", (10, 128), 64, 1e-6, None, (0.2, 0.05), "s k20 m2 n20", "s k20 m2 n20", (50, 5, 10), _intent(0.5, 0.5)),
    "imdb_text_continuation/gpt2_a2c": ("a2c", "lvwerra/gpt2-imdb", (2, 48), None, 1e-6, None, (0.1, 0.5), "s m48 n48", None, (100, 20, 1), {"pool": ("imdb", {})}),
    "imdb_text_continuation/gpt2_nlpo": ("nlpo", "lvwerra/gpt2-imdb", (10, 128), 64, 1e-6, None, (0.1, 0.1), "s m48 n48", None, (50, 10, 10), {"mask": (0.9, 5), "keep": 100, "eval_batch": 64}),
    "imdb_text_continuation/gpt2_nlpo_on_supervised": ("nlpo", "rajkumarrrk/gpt2-fine-tuned-on-imdb-positive-reviews", (10, 128), 64, 1e-6, None, (0.1, 0.1), "s m48 n48", None, (50, 10, 10), {"mask": (0.9, 5), "keep": 100}),
    "imdb_text_continuation/gpt2_ppo": ("ppo", "lvwerra/gpt2-imdb", (10, 128), 64, 1e-6, None, (0.1, 0.1), "s m48 n48", None, (50, 10, 10), {"eval_batch": 64}),
    "imdb_text_continuation/gpt2_ppo_on_supervised": ("ppo", "rajkumarrrk/gpt2-fine-tuned-on-imdb-positive-reviews", (10, 128), 64, 1e-6, None, (0.1, 0.1), "s m48 n48", None, (50, 10, 10), {}),
    "iwslt2017/t5_nlpo": ("nlpo", "t5-base", (10, 512), 64, 1e-6, 0.0, (0.001, 0.2), "s k10 n128", "b4 l0.6 n128", (50, 10, 1), {**_KEEP, **_RIGHT, "mask": (0.5, 20)}),
    "iwslt2017/t5_nlpo_on_supervised": ("nlpo", "rajkumarrrk/t5-fine-tuned-on-iwslt2017en_de", (10, 512), 64, 5e-7, 0.0, (0.001, 0.2), "s k10 n128", "b4 l0.6 n128", (50, 10, 1), {**_KEEP, **_RIGHT, "mask": (0.5, 20)}),
    "iwslt2017/t5_ppo": ("ppo", "t5-base", (10, 512), 64, 1e-6, 0.0, (0.001, 0.2), "s k10 n128", "b4 l0.6 n128", (50, 10, 1), _RIGHT),
    "iwslt2017/t5_ppo_on_supervised": ("ppo", "rajkumarrrk/t5-fine-tuned-on-iwslt2017en_de", (10, 512), 64, 5e-7, 0.0, (0.001, 0.2), "s k5 n128", "b4 l0.6 n128", (50, 10, 1), _RIGHT),
    "narrative_qa/t5_nlpo": ("nlpo", "t5-base", (10, 256), 64, 2e-6, None, (0.001, 1.0), "s k50", "b4", (100, 10, 1), {**_LEARNED, "env_side": "right"}),
    "narrative_qa/t5_nlpo_on_supervised": ("nlpo", "allenai/unifiedqa-t5-base", (10, 256), 64, 5e-7, None, (0.001, 0.2), "s k50", "b4 n50", (100, 10, 1), {**_LEARNED, "env_side": "right", "tokenizer": "allenai/unifiedqa-t5-base"}),
    "narrative_qa/t5_ppo": ("ppo", "t5-base", (10, 256), 64, 2e-6, None, (0.001, 1.0), "s k50", "b4", (100, 10, 1), _RIGHT),
    "narrative_qa/t5_ppo_on_supervised": ("ppo", "allenai/unifiedqa-t5-base", (10, 512), 64, 5e-7, None, (0.001, 0.2), "s k50 n50", "b4 n50", (100, 10, 1), {**_RIGHT, "tokenizer": "allenai/unifiedqa-t5-base"}),
    "summarization/t5_nlpo": ("nlpo", "t5-base", (10, 512), 64, 2e-6, 0.0, (0.001, 0.2), "s k100 m50 n100", "s k0 t0.7 m50 n100", (100, 10, 1), {**_KEEP, **_RIGHT}),
    "summarization/t5_nlpo_on_supervised": ("nlpo", "rajkumarrrk/t5-base-fine-tuned-on-cnn-dm", (10, 512), 64, 2e-6, 0.0, (0.01, 0.2), "s k100 m50 n100", "s k0 t0.7 m50 n100", (50, 10, 1), {**_KEEP, **_RIGHT, "mask": (0.9, 30)}),
    "summarization/t5_ppo": ("ppo", "t5-base", (10, 512), 64, 2e-6, 0.0, (0.001, 0.2), "s k50 m50 n100", "s k0 t0.7 m50 n100", (100, 10, 1), {**_RIGHT, "reward": ("rouge", {"rouge_type": "rouge1"})}),
    "summarization/t5_ppo_on_supervised": ("ppo", "rajkumarrrk/t5-base-fine-tuned-on-cnn-dm", (10, 512), 64, 2e-6, 0.0, (0.01, 0.2), "s k100 m50 n100", "s k0 t0.7 m50 n100", (50, 10, 1), _RIGHT),
    "synthetic_generate_dates/gpt2_ppo": ("ppo", "gpt2", (10, 128), 64, 1e-5, 0.001, (0.02, 2), "s k0 n30", None, (100, 5, None), {"args": {"clip_range": 0.2}}),
    "synthetic_generate_increasing_numbers/bart_ppo": ("ppo", "facebook/bart-base", (10, 128), 128, 1e-7, 0.0, (0.0001, 3), "s m20 k50 n20 b1", None, (100, 10, 10), {"start": 2, "prompt": "Generate some numbers 1 2", "parallel": False}),
    "synthetic_generate_increasing_numbers/blendorbot_ppo": ("ppo", "facebook/blenderbot-400M-distill", (10, 128), 64, 1e-6, 0.001, (1e-5, 3), "s m20 k200 n20 b1", None, (100, 10, 10), {"start": 1, "prompt": "Let us generate some numbers", "parallel": False}),
    "synthetic_generate_increasing_numbers/gpt2_a2c": ("a2c", "gpt2", (10, 20), None, 1e-5, 0.001, (0.02, 2), "s n20", None, (500, 20, 20), {}),
    "synthetic_generate_increasing_numbers/gpt2_nlpo": ("nlpo", "gpt2", (10, 128), 64, 1e-5, 0.0, (0.02, 2), "s k0 m20 n20", None, (200, 10, 10), {"mask": (0.9, 100), "start": 0, "args": {"gae_lambda": 0.9, "vf_coef": 0.1}}),
    "synthetic_generate_increasing_numbers/gpt2_ppo": ("ppo", "gpt2", (10, 128), 64, 1e-6, 0.001, (0.02, 2), "s n20", None, (100, 5, 20), {}),
    "synthetic_generate_increasing_numbers/gpt2_trpo": ("trpo", "gpt2", (2, 20), None, 1e-5, None, (0.01, 2), "s n20", None, (1000, 5, 20), {}),
    "synthetic_generate_increasing_numbers/t5_nlpo": ("nlpo", "t5-base", (10, 128), 64, 2e-6, None, (0.001, 2.0), "s m20 k200 n20", None, (100, 10, 10), {**_LEARNED, "start": 0, "prompt": "Let us generate some numbers"}),
    "synthetic_generate_increasing_numbers/t5_ppo": ("ppo", "t5-base", (10, 128), 64, 1e-6, 0.001, (1e-5, 3), "s m20 k200 n20", None, (100, 10, 10), {"start": 0, "prompt": "Let us generate some numbers"}),
    "totto/t5_nlpo": ("nlpo", "t5-base", (10, 256), 64, 2e-6, None, (0.001, 2.0), "s k0 m10 n50", "b5 m10 n50", (100, 20, 1), _LEARNED),
    "totto/t5_nlpo_on_supervised": ("nlpo", "rajkumarrrk/t5-base-fine-tuned-on-totto", (10, 256), 64, 5e-7, None, (0.01, 0.2), "s k0 m10 n50", "b5 m10 n50", (100, 20, 1), _LEARNED),
    "totto/t5_ppo": ("ppo", "t5-base", (10, 256), 64, 2e-6, None, (0.001, 2.0), "s k0 m10 n50", "b5 m10 n50", (100, 20, 1), {}),
    "totto/t5_ppo_on_supervised": ("ppo", "rajkumarrrk/t5-base-fine-tuned-on-totto", (10, 256), 64, 5e-7, None, (0.01, 0.2), "s k50 m10 n50", "b5 m10 n50", (100, 20, 1), {}),
}  # fmt: skip

# By name: model, batch, epochs, lr, schedule, weight decay, generation, logging steps, and what else differs.
SUPERVISED: dict[str, tuple[Any, ...]] = {
    "common_gen/t5_supervised": ("t5-base", 8, 4, 1e-5, "cosine", 0.01, "b5 m5 n20", 5000, {}),
    "dialog/gpt2_supervised": ("gpt2", 32, 20, 1e-5, "constant", None, "s k20 m2 n20", 300, {"length": 128, "eval_batch": 256}),
    "imdb_text_continuation/gpt2_supervised": ("lvwerra/gpt2-imdb", 16, 10, 1e-5, "constant", None, "s m48 n48", 200, {"length": 64, "tokenizer": "gpt2", "pool": ("imdb_seq2seq", {"positive_ratio": 1.0})}),
    "iwslt2017/t5_supervised": ("t5-base", 64, 5, 1e-5, "constant", 0.1, "b4 l0.6 n128", 1000, {"metrics": _metrics("meteor rouge bleu bert_score bleu sacre_bleu ter chrf diversity")}),
    "summarization/t5_supervised": ("t5-base", 16, 2, 1e-4, "cosine", 0.1, "s k0 t0.7 m50 n100", 5000, {}),
    "totto/t5_supervised": ("t5-base", 8, 5, 1e-4, "constant_with_warmup", 0.1, "s b10 m10 n50", 20000, {}),
}  # fmt: skip


def is_causal(name: str) -> bool:
    """Whether a file trains a causal model, by its name."""
    return name.partition("/")[2].startswith("gpt2")


def config(name: str) -> Entries:
    """The entries of the file of that name, as its YAML holds them."""
    return _online(name) if name in ONLINE else _supervised(name)


def _online(name: str) -> Entries:
    kind, model, sizes, batch, rate, entropy, kl, rollout, evaluation, times, more = ONLINE[name]
    task = TASKS[name.partition("/")[0]] | more
    causal, nlpo = is_causal(name), kind == "nlpo"
    prompt_length, episode_length = task["lengths"]
    args: Entries = {"n_steps": sizes[1], "verbose": 1, "learning_rate": rate, **task.get("args", {})}
    if kind in ("ppo", "nlpo"):
        args |= {"batch_size": batch, "n_epochs": 5}
    policy: Entries = {
        "model_name": model,
        "apply_model_parallel": task.get("parallel", True),
        "generation_kwargs": _generation(rollout),
    }
    env: Entries = {"max_prompt_length": prompt_length, "max_episode_length": episode_length, "terminate_on_eos": True}  # fmt: skip
    if entropy is not None:
        args["ent_coef"] = entropy
    if nlpo:
        policy |= {"mask_type": "learned_top_p", "top_mask": task["mask"][0], "target_update_iterations": task["mask"][1]}  # fmt: skip
        policy |= {"min_tokens_to_keep": task["keep"]} if "keep" in task else {}
    if "side" in task:
        policy["prompt_truncation_side"] = env["prompt_truncation_side"] = task["side"]
    if "env_side" in task:
        env["prompt_truncation_side"] = task["env_side"]
    if "start" in task:
        env["context_start_token"] = task["start"]
    made = _shared(name, task, model)
    made |= {
        "reward_fn": _named(*task["reward"]),
        "env": {"n_envs": sizes[0], "args": env},
        "alg": {
            "id": kind,
            "args": args,
            "kl_div": {"coeff": kl[0], "target_kl": kl[1]},
            "policy": {
                "id": f"{'maskable_' if nlpo else ''}{'causal' if causal else 'seq2seq'}_lm_actor_critic_policy",
                "args": policy,
            },
        },
    }
    every = zip(("n_iters", "eval_every", "save_every"), times, strict=True)
    made["train_evaluation"] |= {key: value for key, value in every if value is not None}
    if evaluation is not None:
        made["train_evaluation"]["generation_kwargs"] = _generation(evaluation)
    return made


def _supervised(name: str) -> Entries:
    model, batch, epochs, rate, schedule, decay, generation, logged, more = SUPERVISED[name]
    task = TASKS[name.partition("/")[0]] | more
    made = _shared(name, task, model)
    if "length" in task:
        made["tokenizer"]["max_length"] = task["length"]
    training = {
        "per_device_train_batch_size": batch, "logging_steps": logged, "num_train_epochs": epochs,
        "lr_scheduler_type": schedule, "learning_rate": rate, "save_total_limit": 1,
    }  # fmt: skip
    made["alg"] = {
        "id": "supervised",
        "training_args": training | ({} if decay is None else {"weight_decay": decay}),
        "model_type": "causal" if is_causal(name) else "seq2seq",
        "model_name": model,
        "generation_kwargs": {**_generation(generation), "post_processing_fn": None},
    }
    return made


def _named(id: str, args: Entries | None) -> Entries:
    return {"id": id} if args is None else {"id": id, "args": dict(args)}


def _shared(name: str, task: Entries, model: str) -> Entries:
    pool, args = task["pool"]
    tokenizers = {"facebook/bart-base", "facebook/blenderbot-400M-distill"} & {model}
    tokenizer = tokenizers.pop() if tokenizers else task.get("tokenizer", "gpt2" if is_causal(name) else "t5-base")
    right = name.startswith("totto") or name in ("common_gen/t5_supervised", "summarization/t5_supervised")
    metrics = [_named(metric["id"], metric.get("args")) for metric in task["metrics"]]
    if name in ("narrative_qa/t5_nlpo", "narrative_qa/t5_ppo"):
        metrics[4]["args"]["apply_best"] = "True,"
    if name == "imdb_text_continuation/gpt2_supervised":
        metrics[1]["args"]["use_text_from_meta_data"] = True
    return {
        "tokenizer": {
            "model_name": tokenizer, "padding_side": "left", "truncation_side": "right" if right else "left",
            "pad_token_as_eos_token": is_causal(name),
        },
        "datapool": _named(pool, args | {"prompt": task["prompt"]} if "prompt" in task else args),
        "train_evaluation": {"eval_batch_size": task["eval_batch"], "metrics": metrics},
    }  # fmt: skip


NAMES = sorted([*ONLINE, *SUPERVISED])
