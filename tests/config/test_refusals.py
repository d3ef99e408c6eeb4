"""Each wrong setting is rejected in one line with the key, the value, the allowed values and the nearest name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.errors import ConfigError
from groundling.worlds.text.world import TextWorld
from tests.thorough import one_in

_WRITING = "rl4lms/increasing_numbers_ppo"
_DEMO = [
    # Keys.
    ("world.num_env=3", "'world.num_env': did you mean 'world.num_envs'"),
    ("sed=3", "^unknown config key 'sed': did you mean 'seed'"),
    ("model={banana: 3}", "unknown config key 'model.banana'"),
    ("reward={env: {banana: 1}}", "unknown config key 'reward.env.banana'"),
    ("reward.env.coeff=2", "'reward.env.coeff': did you mean 'reward.env.coefficient'"),
    ("env.reward_scale=2", "unknown config key 'env'"),
    ("seed.x=1", r"^seed\.x does not exist"),
    ("~world.args.colour", "cannot remove world.args.colour"),
    ("~seed", "cannot remove seed"),
    ("~reward.rouge", "cannot remove reward.rouge: the reward consists of env alone"),
    ("reward.count=null", "cannot remove reward.count: the reward consists of env"),
    # The grammar of overrides.
    ("seed", "key=value"),
    ("seed=1,2", "^seed accepts a single value, got several: seed=1,2$"),
    ("seed@x=3", "without @"),
    ("name=né", "quote"),
    # Types and bounds.
    ("seed=1.5", r"^seed must be a whole number, got 1\.5$"),
    ("seed=true", "^seed must be a whole number, got True$"),
    ("seed=null", "^seed must be a whole number, got null$"),
    ("seed=4294967296", "^seed must be less than 2147483648, got 4294967296$"),
    ("world.num_envs=many", "^world.num_envs must be a whole number, got 'many'$"),
    ("world.num_envs=0", "^world.num_envs must be at least 1, got 0$"),
    ("training={steps: -5}", "^training.steps must be at least 1, got -5$"),
    ("model.max_prompt_tokens=0", "^model.max_prompt_tokens must be at least 1, got 0$"),
    ("model.load_in_4bit=3", r"^model\.load_in_4bit must be true or false, got 3$"),
    ("model.init=magic", "^model.init must be one of pretrained, random, embeddings, got 'magic'$"),
    ("world.timeout=nan", r"^world\.timeout must be a finite number, got nan$"),
    ("world.timeout=inf", r"^world\.timeout must be a finite number, got inf$"),
    ("reward.env.coefficient=inf", r"^reward\.env\.coefficient must be a finite number, got inf$"),
    ("world.timeout=0", r"^world\.timeout must be greater than 0, got 0$"),
    ("world.probes=3", "^world.probes must be one of 1, 2, both, got 3$"),
    ("world.actions=[[drop]]", r"^world\.actions\[0\] must be text, got \['drop'\]$"),
    ("world.actions=${seed}", r"^world\.actions must be a list, \[value, value\], got 1$"),
    ("evaluation.baselines=3", r"^evaluation\.baselines must be a list, \[value, value\], got 3$"),
    ("world=[1]", r"^world must be a mapping, {name: value}, got \[1\]$"),
    ("evaluation=${seed}", "^evaluation must be a mapping, {name: value}, got 1$"),
    ("reward=3", "^reward must be a mapping, {name: value}, got 3$"),
    ("reward={env: 0.5}", r"^reward\.env must be a mapping, {name: value}, got 0\.5$"),
    ("reward.env.coefficient=abc", r"^reward\.env\.coefficient must be a number, got 'abc'$"),
    ("policy.args=[1]", r"^policy\.args must be a mapping, {name: value}, got \[1\]$"),
    ("run_dir=${world}", "^run_dir must be text, got {'id': 'text', "),
    ("name=[a]", r"^name must be text, got \['a'\]$"),
    ("name=", "^name must be one line of printable characters, got ''$"),
    ("training.wandb=", "^training.wandb must be one line of printable characters, got ''$"),
    ("world.env=???", r"^world\.env is not set: give world\.env a value$"),
    ("run_dir=x/${world.envs}", r"run_dir: \${world.envs} does not exist: use a key"),
    # Components and their arguments.
    ("algorithm.id=pppo", "unknown algorithm 'pppo': did you mean 'ppo'"),
    ("policy.id=nobody", "action_scoring"),
    ("algorithm.args.learning_rat=1", "'learning_rat': did you mean 'learning_rate'"),
    (
        "policy.args.recurrence=3",
        "an unknown argument 'recurrence': available: .* ~policy.args removes the experiment's",
    ),
    ("algorithm.args.learning_rate=fast", "^algorithm.args.learning_rate must be a number, got 'fast'$"),
    ("algorithm.args.learning_rate=nan", "^algorithm.args.learning_rate must be a finite number, got nan$"),
    ("algorithm.args.learning_rate_schedule=cubic", "must be one of constant, linear, cosine, got 'cubic'$"),
    ("policy.args.value_hidden_sizes=wide", r"must be a list, \[value, value\], got 'wide'$"),
    ("policy.args.lm=big", r"policy\.args\.lm cannot be set: .* model\.path"),
    ("+policy.args.reference=big", r"policy\.args\.reference cannot be set: .* model\.path"),
    ("reward.env.args.scales=2", "'scales': did you mean 'scale'"),
    ("reward.reward_model.args.threshold_quantile=3", "reward.reward_model.args.*threshold_quantile must"),
    # Settings that contradict each other.
    ("world.actions=[]", "world.actions is empty: list at least one action"),
    ("world.actions=[drop,drop,left]", "world.actions contains a duplicate"),
    ("world.actions=[a,b]", "world.actions lists only 2 actions .* name at least the first 3"),
    ("world={probes: 1, language: french}", "world.probes=null"),
    ("world.args.language=french", "world.args.language .* set world.language"),
    ("world.args.render_mode=ansi", "world.args.render_mode .* watch"),
    ("world.args.id=3", "world.args.id .* set world.env"),
    ("evaluation.baselines=[nobody]", "zero-shot"),
    ("evaluation.baselines=[expert,expert]", "evaluation.baselines lists expert twice"),
    ("reward.env.coefficient=0", "no reward to learn from: the coefficients of reward.env are all 0"),
]
_OTHERS = [
    ("motif/score", ["~reward.reward_model", "world.num_envs=33", "world.num_workers=2"], "set world.num_envs=34$"),
    *(
        ("motif/score", ["~reward.reward_model", f"world.args.max_episode_steps={limit}"], "number of at least 1")
        for limit in ("0", "ten", "1.5", "true", "null")
    ),
    (_WRITING, ["reward.learned_reward={}"], r"needs reward.learned_reward.args.model_name$"),
    (_WRITING, ["reward.weighted_sum={}"], r"'weighted_sum' needs reward.weighted_sum.args.parts$"),
    (_WRITING, ["reward.increasing_numbers.args.min_tokens=a"], "args.min_tokens must be a whole number, got 'a'$"),
    (_WRITING, ["reward.env=null"], "cannot remove reward.env: the reward consists of incr"),
    (_WRITING, ["~reward.env"], "cannot remove reward.env: the reward consists of incr"),
    (_WRITING, ["~reward", "~reward.rouge"], "reward.rouge: the reward has no parts"),
    (_WRITING, ["world.num_texts=8", "world.texts_per_prompt=3"], r"must divide world.num_texts=8"),
    (_WRITING, ["world.pool=jsonl", "~world.args"], r"'jsonl' needs world.args.path$"),
    (_WRITING, ["world.prompt_truncation_side=top"], "must be one of left, right, got 'top'$"),
    (_WRITING, ["evaluation.metrics=[{id:learned_reward,args:{label_ix:1}}]"], r"needs evaluation.metrics\[0\].args.m"),
    (_WRITING, ["evaluation.metrics=[{id:causal_perplexity,args:{lm:3}}]"], r"metrics\[0\].args.lm must be .* got 3"),
    *((_WRITING, [f"evaluation.generation={{{words}}}"], f"evaluation.generation.*{message}") for words, message in (
        ("num_beam: 2", "'num_beam'.*'num_beams'"),
        ("num_beams: 0", "num_beams must be an integer of at least 1, got 0"),
        ("num_beams: 1.5", "num_beams must be an integer of at least 1, got 1.5"),
        ("do_sample: true, temperature: 0", "temperature must be greater than 0, got 0"),
        ("do_sample: true, top_k: many", "top_k must be .* 'many'"),
        ("max_new_tokens: many", "max_new_tokens must be "),
        ("max_length: 30", "max_length=30 has no effect, .*: set max_new_tokens"),
        ("max_new_tokens: null", "max_new_tokens=null sets no maximum length"),
        ("do_sample: true, num_return_sequences: 2", "num_return_sequences=2 writes 2 texts per prompt"),
        ("temperature: -1", "temperature must be greater than 0, got -1"),
        ("do_sample: false, temperature: 7, top_k: 3", "cannot be used: `temperature`: `do_sample` is not set"),
    )),
]  # fmt: skip
_IDLE = [
    ("demo", ["model.revision=main"], "model.path=starter-causal is a local folder"),
    ("rl4lms/common_gen_supervised", ["training.steps=500"], "training.epochs=4 already sets"),
    (_WRITING, ["model.max_prompt_tokens=9"], "prompts are truncated to world.max_prompt_length"),
    ("demo-easy", ["device=cpu", "model.device_map=auto"], "device=cpu has no GPUs"),
    ("glam/symbolic", ["world.history=2"], "the policy does not read text"),
    ("glam/symbolic", ["world.probes=1"], "the policy does not read text"),
    ("glam/symbolic", ["world.actions=[a,b,c,d,e,f]"], "the policy does not read text"),
    ("glam/drrn", ["world.entropy_floor=0"], "the algorithm does not report"),
    ("motif/score", ["~reward.reward_model", "world.entropy_floor=0"], "NetHackScore-v1 has a score but no failures"),
    ("glam/bc", ["world.entropy_floor=0"], "the algorithm does not report"),
    (
        "demo-easy",
        ["algorithm.id=reinforce_pp", "~algorithm.args", "world.bootstrap_truncated=true"],
        "the algorithm does not learn a value function",
    ),
]
_REFUSED = [
    *(("demo-easy", [override], message) for override, message in _DEMO),
    *_OTHERS,
    *((name, words, f"{words[-1].partition('=')[0]}=.* does nothing: .*{why}") for name, words, why in _IDLE),
]  # fmt: skip


@pytest.mark.parametrize(("experiment", "overrides", "message"), one_in(2, _REFUSED))
def test_a_wrong_setting_is_refused_in_one_line(experiment: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compose(experiment, overrides)
    assert "\n" not in str(caught.value)


def test_a_suggestion_is_made_only_where_a_name_is_near() -> None:
    with pytest.raises(ConfigError, match="available: calibration, compat, language") as error:
        compose("demo-easy", ["policy.args.recurrence=3"])
    assert "did you mean" not in str(error.value)


def test_actions_of_a_policy_of_symbols_are_used_if_they_are_fewer_or_a_judge_reads_them() -> None:
    assert len(compose("glam/symbolic", ["world.actions=[a,b,c]"]).world.actions) == 3
    online = {"args": {"rules": [["a", 1]]}, "judge": "rules"}
    part = f"reward.reward_model={{args: {{online: {json.dumps(online).replace(chr(34), '')}}}}}"
    assert compose("glam/symbolic", [part, "world.actions=[a,b,c,d,e,f]"])


_ONLINE = "reward.reward_model.args.online"


@pytest.mark.parametrize(
    ("experiment", "overrides", "message"),
    one_in(
        2,
        [
            (_WRITING, [f"{_ONLINE}.model=motif"], "supports only NetHack's messages"),
            ("demo-easy", [f"{_ONLINE}.model=classifier"], "online.model=characters"),
            ("demo-easy", [f"{_ONLINE}.model=banana"], "'banana'"),
            ("demo-easy", [f"{_ONLINE}.banana=1"], "argument of online 'banana'"),
            ("demo-easy", [f"{_ONLINE}.learning.banana=1"], "online.learning has an unknown argument 'banana'"),
            ("demo-easy", [f"{_ONLINE}.args.banana=1"], "judge 'rules' 'banana'"),
            ("demo-easy", [f"{_ONLINE}.args.rules=1"], r"rules must be a list, \[value, value\], got 1"),
            ("demo-easy", [f"{_ONLINE}.judge=openai"], "judge 'openai' 'rules'"),
            ("demo-easy", ["reward.diversity={}"], "several values: set key to one of"),
            ("demo-easy", ["reward.diversity.args.key=b"], "key of Diversity"),
            ("demo-easy", ["reward.reward_model.args.path=x", f"{_ONLINE}.model=table"], "no effect with path=x"),
            (
                "demo-easy",
                ["policy.id=token", "~policy.args"],
                "set policy.id to one of action_generating, .*symbolic",
            ),
            (
                "demo-easy",
                ["policy.id=nethack", "~policy.args", "~algorithm.args"],
                "it needs glyphs, but BabyAI-MixedTrainLocal-v0 provides symbols and words",
            ),
        ],
    ),
)
def test_a_run_is_refused_before_anything_is_made(
    experiment: str, overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    online = [f"{_ONLINE}={{judge: rules, args: {{rules: [[a, 1]]}}}}", "device=cpu"]
    run = tmp_path / "runs" / "one"
    for more in (["--dry-run"], []):
        assert main(["train", experiment, *online, *overrides, f"run_dir={run}", *more]) == 1
        captured = capsys.readouterr()
        assert re.search(message, captured.err) and captured.err.count("\n") == 1 and not captured.out
        assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_refused_late_leaves_no_folder_and_no_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "one"
    words = ["train", "demo-easy", f"run_dir={run}", "device=cpu", "world.num_envs=2", "world.num_steps=4"]
    words += ["training.steps=8", "algorithm.args.minibatch_size=8"]

    def refuse(*args: Any) -> None:
        (run / "samples.jsonl").write_text("")
        raise ConfigError("nothing can be measured")

    with monkeypatch.context() as patch:
        patch.setattr(TextWorld, "logs", refuse)
        assert main(words) == 1
        captured = capsys.readouterr()
        assert captured.err == "error: nothing can be measured\n" and "training in" not in captured.out
        assert list(tmp_path.iterdir()) == []
        (run / "notes").mkdir(parents=True)
        assert main(words) == 1
        names = {path.name for path in run.iterdir()}  # the user's own folders are kept
        assert "notes" in names and "config.yaml" not in names
    capsys.readouterr()
    assert main(words) == 0
    output = capsys.readouterr()
    assert f"training in {run}" in (output.out + output.err).replace("\n", "")
    before = (run / "config.yaml").read_text()
    monkeypatch.setattr(TextWorld, "logs", refuse)
    assert main([*words, "training.steps=16"]) == 1
    assert (run / "config.yaml").read_text() == before and (run / "checkpoints").is_dir()
