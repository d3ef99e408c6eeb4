"""YAML files of RL4LMs are converted to equivalent experiments."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from groundling.cli.main import main
from groundling.config.compose import compose, from_file
from groundling.config.schema import Config
from groundling.convert.experiment import convert
from groundling.errors import ConfigError
from tests.convert import read
from tests.convert.originals import RL4LMS, rl4lms
from tests.thorough import one_in

_PPO, _NLPO, _SUPERVISED = "totto/t5_ppo", "dialog/gpt2_nlpo", "dialog/gpt2_supervised"
_NUMBERS = "synthetic_generate_increasing_numbers"


def _parts(config: Config) -> dict[str, Any]:
    """Return the arguments of each part of the reward."""
    return {name: part.args for name, part in config.reward.items() if part is not None}


@pytest.mark.parametrize("name", one_in(4, RL4LMS))
def test_every_file_is_read_unchanged(name: str, write: Callable[..., Path]) -> None:
    made, notes = read(write(name))
    assert made.name == name.replace("/", "-") and len(set(notes)) == len(notes)
    entries = rl4lms(name)
    assert made.world.pool == entries["datapool"]["id"] and made.algorithm.id == entries["alg"]["id"]
    tokens = made.world.num_texts * made.world.num_tokens
    if "env" in entries:
        asked = entries["env"]["n_envs"] * entries["alg"]["args"]["n_steps"]
        assert asked <= tokens < asked + made.world.num_tokens
        assert made.training.steps == asked * entries["train_evaluation"]["n_iters"]


def test_the_arithmetic_and_the_defaults_of_ppo(write: Callable[..., Path]) -> None:
    made, notes = read(write("common_gen/t5_ppo"))
    assert (made.world.num_texts, made.world.num_tokens) == (128, 20)  # 10 × 256 tokens
    assert made.training.steps == 200 * 2560 and made.training.checkpoint_every == 1
    assert (made.world.max_prompt_length, made.world.prompt_truncation_side) == (20, "right")
    assert made.algorithm.args == {
        "learning_rate": 2e-6,
        "epochs": 5,
        "minibatch_size": 64,
        "entropy_coefficient": 0.01,
        "gae_lambda": 0.95,
        "normalize_advantages": True,
        "value_clip_range": None,
        "value_coefficient": 1.0,  # weights half the squared error; Stable-Baselines3's 0.5
        "adam_epsilon": 1e-8,
        "weight_decay": 1e-6,
        "kl_coefficient": 0.001,
        "kl_target": 2,
    }
    assert made.policy.args == {
        "generation": {"do_sample": True, "top_k": 0, "min_length": 5, "terminate_on_eos": True},
        "context_start_token": 0,
    }
    assert _parts(made) == {"meteor": {"shaping_fn": "common_gen_repeat_penalty"}}
    assert (made.evaluation.every, made.evaluation.batch_size) == (20, 20)
    assert made.evaluation.generation == {"num_beams": 5, "min_length": 5, "max_new_tokens": 20}
    assert [m.id for m in made.evaluation.metrics][-3:] == ["cider", "spice", "diversity"]
    all_notes = "\n".join(notes)
    for entry in ("apply_model_parallel", "padding_side", "verbose", "2560 tokens", "filtered_log_probs"):
        assert all_notes.count(entry) == 1


def test_min_length_of_a_causal_model_counts_the_text_alone(write: Callable[..., Path]) -> None:
    supervised, _ = read(write("imdb_text_continuation/gpt2_supervised"))
    online, _ = read(write("imdb_text_continuation/gpt2_ppo"))
    for generation in (supervised.evaluation.generation, online.policy.args["generation"]):
        assert generation["min_new_tokens"] == 48 and "min_length" not in generation


def test_defaults_are_the_originals(write: Callable[..., Path]) -> None:
    path = write("dialog/gpt2_nlpo")
    file = OmegaConf.load(path)
    for name in ("max_prompt_length", "terminate_on_eos"):
        del file.env.args[name]  # type: ignore[union-attr]
    for name in ("mask_type", "target_update_iterations"):
        del file.alg.policy.args[name]  # type: ignore[union-attr]
    file.alg.policy.args.top_mask = 20  # type: ignore[union-attr]
    file.alg.policy.args.min_tokens_to_keep = 7  # type: ignore[union-attr]
    OmegaConf.save(file, path)
    made, notes = read(path)
    assert made.policy.args["generation"]["terminate_on_eos"] is False
    assert made.policy.args["mask_type"] == "learned_top_k"
    assert "min_tokens_to_keep" not in made.policy.args  # this is an argument of a top-p mask
    assert made.algorithm.args["target_update_iterations"] == 1000
    assert sum("env.args.max_prompt_length is not set" in note for note in notes) == 1


def test_nlpos_mask_belongs_to_the_policy_and_its_refresh_to_the_algorithm(write: Callable[..., Path]) -> None:
    made, notes = read(write(f"{_NUMBERS}/gpt2_nlpo"))
    assert made.policy.args["mask_type"] == "learned_top_p" and made.policy.args["top_mask"] == 0.9
    args = made.algorithm.args
    assert args["target_update_iterations"] == 100
    assert (args["gae_lambda"], args["value_coefficient"]) == (0.9, 0.2)
    assert "context_start_token" not in made.policy.args  # the model is causal
    all_notes = "\n".join(notes)
    assert "context_start_token=0: ignored" in all_notes and "mask model is refreshed" in all_notes


def test_algorithms_keep_the_originals_defaults(write: Callable[..., Path]) -> None:
    a2c, _ = read(write("imdb_text_continuation/gpt2_a2c"))
    assert (a2c.world.num_texts, a2c.world.num_tokens) == (2, 48)
    assert a2c.algorithm.args["value_coefficient"] == 1.0 and "epochs" not in a2c.algorithm.args
    assert a2c.policy.args["generation"]["top_k"] == 50  # the default of Transformers at that time
    trpo, _ = read(write(f"{_NUMBERS}/gpt2_trpo"))
    assert "value_coefficient" not in trpo.algorithm.args and trpo.algorithm.args["learning_rate"] == 1e-5


def test_supervised_epochs_and_evaluations_are_counted_in_updates(write: Callable[..., Path]) -> None:
    made, _ = read(write("totto/t5_supervised"))
    assert (made.training.epochs, made.training.keep_checkpoints) == (5, 1)
    assert made.world.num_texts == 8 * 100 and made.evaluation.every == 20000 // 100
    assert made.algorithm.args == {
        "minibatch_size": 8,
        "learning_rate": 1e-4,
        "learning_rate_schedule": "constant",
        "warmup": 0.0,
        "weight_decay": 0.1,
    }
    generation = {"do_sample": True, "num_beams": 10, "min_length": 10, "max_new_tokens": 50, "top_k": 50}
    assert made.evaluation.generation == generation
    dialog, _ = read(write(_SUPERVISED))
    assert (dialog.world.max_prompt_length, dialog.world.num_tokens) == (128, 128)


def test_booleans_may_be_strings(write: Callable[..., Path]) -> None:
    made, _ = read(write("narrative_qa/t5_nlpo"))  # as in the original's file
    assert made.evaluation.metrics[4].args["apply_best"] is True
    assert made.world.num_tokens == 50  # the length of the episode, since max_new_tokens is not set
    changed, _ = read(write("narrative_qa/t5_nlpo", reward_fn__args__stemming="False,"))
    assert _parts(changed)["rouge_l_max"]["stemming"] is False


def test_missing_entries_have_the_originals_defaults(write: Callable[..., Path]) -> None:
    dates, _ = read(write("synthetic_generate_dates/gpt2_ppo"))
    assert dates.training.checkpoint_every == 20  # no save_every
    supervised, _ = read(write(_SUPERVISED, tokenizer__truncation_side=None))
    assert supervised.world.prompt_truncation_side == "left"
    assert read(write("narrative_qa/t5_ppo"))[0].world.args == {}  # no datapool.args
    assert _parts(read(write("iwslt2017/t5_ppo"))[0]) == {"ter": {}}  # no reward_fn.args
    assert read(write("totto/t5_supervised"))[0].world.prompt_truncation_side == "right"


def test_a_metric_named_twice_is_measured_once(write: Callable[..., Path]) -> None:
    made, _ = read(write("iwslt2017/t5_ppo"))
    assert [m.id for m in made.evaluation.metrics].count("bleu") == 1


def test_another_models_tokenizer_is_used_unless_the_model_is_replaced(write: Callable[..., Path]) -> None:
    path = write("common_gen/t5_nlpo_on_supervised")
    assert read(path)[0].model.tokenizer == "t5-base"
    model = "alg.policy.args.model_name=starter"
    assert read(path, [model])[0].model.tokenizer is None
    assert read(path, [model, "tokenizer.model_name=t5-small"])[0].model.tokenizer == "t5-small"
    assert read(write("common_gen/t5_ppo"))[0].model.tokenizer is None


def test_the_experiment_is_complete(write: Callable[..., Path], tmp_path: Path) -> None:
    converted = convert(write(_NLPO), ["alg.args.gamma=0.9"])
    experiment = tmp_path / "experiment" / "mine.yaml"
    experiment.parent.mkdir()
    experiment.write_text(converted.to_yaml(), encoding="utf-8")
    assert from_file(experiment) == converted.config == compose("mine", [], tmp_path)
    comments = " ".join(re.findall("^# +(.*)$", experiment.read_text(encoding="utf-8"), re.M))
    for note in converted.notes:
        assert note in comments
    ours = ["algorithm.args.learning_rate=1e-4", "reward.rouge={}", "model.lora={r: 4}"]
    changed = from_file(experiment, ours)
    assert (changed.algorithm.args["learning_rate"], changed.algorithm.args["gamma"]) == (1e-4, 0.9)
    assert list(changed.reward)[-1] == "rouge" and changed.model.lora == {"r": 4}


def test_summaries_may_be_post_processed(write: Callable[..., Path]) -> None:
    from groundling.metrics.tokens import three_sentence_summary

    text = "One is here. Two came too! Did three? Four never did."
    assert three_sentence_summary(text) == "One is here.\nTwo came too!\nDid three?"
    key = "alg__generation_kwargs__post_processing_fn"
    made, _ = read(write("summarization/t5_supervised", **{key: "three_sentence_summary"}))
    assert made.evaluation.post_process == "three_sentence_summary"
    assert "post_processing_fn" not in made.evaluation.generation
    with pytest.raises(ConfigError, match="three_sentence_summary"):
        read(write("summarization/t5_supervised", **{key: "three_sentences"}))


@pytest.mark.parametrize(
    ("override", "message"),
    one_in(
        2,
        [
            ("alg.args.n_step=1", "'alg.args.n_steps'"),
            ("alg.policy.args.topmask=1", "'alg.policy.args.top_mask'"),
            ("train_evaluation.n_iter=1", "'train_evaluation.n_iters'"),
            ("alg.args.learning_rate=1,2", "expected one value"),
            ("alg.args.learning_rate=[", "key=value"),
            ("alg.args.n_steps=many", "alg.args.n_steps must be a whole number.*many"),
            ("alg.args.learning_rate=fast", "learning_rate.*fast"),
            ("alg.id=pppo", "'ppo'"),
            ("alg.policy.id=seq2seq_policy", "seq2seq_lm_actor_critic_policy"),
            ("alg.id=nlpo", "maskable_seq2seq"),
            ("datapool.id=tottto", "'totto'"),
            ("datapool.args.representations=full", "'representation'"),
            ("reward_fn.id=meteorr", "'meteor'"),
            ("reward_fn.args.shaping=x", "'shaping_fn'"),
            ("alg.policy.args.generation_kwargs.num_beams=4", "num_beams=4"),
            ("alg.policy.args.generation_kwargs.topk=4", "'top_k'"),
            ("train_evaluation.generation_kwargs.num_beam=4", "'num_beams'"),
            ("train_evaluation.metrics=[rouge]", "id: …"),
            ("~env.args.max_episode_length", "add env.args.max_episode_length"),
            ("~alg.id", "add alg.id"),
        ],
    ),
)
def test_wrong_values_are_refused_in_one_line(override: str, message: str, write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(write(_PPO), [override])
    assert "\n" not in str(caught.value)


def test_an_unknown_entry_of_a_file_names_the_nearest(write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"'alg.args.n_epoch'.*'alg.args.n_epochs'"):
        read(write(_PPO, alg__args__n_epoch=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("a: [1, 2", "cannot read"),
        ("- x", "cannot read"),
        ("name: x", "neither a GLAM or Lamorel config .* nor an RL4LMs"),
        ("alg: {id: ppo}", "neither a GLAM or Lamorel config .* nor an RL4LMs"),
    ],
)
def test_other_files_are_refused_in_one_line(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "file.yaml").write_text(text)
    assert main(["convert", str(tmp_path / "file.yaml")]) == 1
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1


def test_arguments_of_adamw_are_read(write: Callable[..., Path]) -> None:
    path = str(write("common_gen/t5_ppo"))
    key = "alg.policy.args.optimizer_kwargs"
    given = f"{key}={{eps: 1e-5, betas: [0.8, 0.95], lr: 0.1, fused: true, amsgrad: false}}"
    made, notes = read(Path(path), [given])
    assert made.algorithm.args["adam_epsilon"] == 1e-5 and made.algorithm.args["weight_decay"] == 1e-6
    assert (made.algorithm.args["adam_beta1"], made.algorithm.args["adam_beta2"]) == (0.8, 0.95)
    for name in ("lr", "fused"):
        assert sum(f"{key}.{name}: no effect here" in note for note in notes) == 1
    for wrong in ("amsgrad: true", "betas: 0.9", "momentum: 0.9"):
        with pytest.raises(ConfigError, match=rf"{key}.*only AdamW's eps and betas"):
            read(Path(path), [f"{key}={{{wrong}}}"])
    for empty in ("{}", "null"):
        assert read(Path(path), [f"{key}={empty}"])[0].algorithm.args["adam_epsilon"] == 1e-8
    made, notes = read(write("imdb_text_continuation/gpt2_a2c"), [f"{key}={{eps: 1e-3}}"])
    assert made.algorithm.args.get("rms_epsilon") != 1e-3
    assert any(f"{key}.eps: no effect here" in note for note in notes)
