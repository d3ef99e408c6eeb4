"""Text generation runs: rollouts, figures and files."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from groundling.algorithms import Rollout
from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import ConfigError
from groundling.io.row_files import read_rows
from groundling.metrics.models import CausalPerplexity
from groundling.runtime.processes import Processes
from groundling.training.build import world_of
from groundling.training.checkpoint import open_run
from groundling.training.tracking import read_metrics
from groundling.training.train import train
from groundling.training.trainer import Trainer
from groundling.worlds.writing.collect import References
from groundling.worlds.writing.config import PromptEncoder
from groundling.worlds.writing.measures import make_measured_reward, make_metrics, write_rows
from tests.building import algorithm_of, policy_of
from tests.runs import figures


def _config(run_dir: Path, *overrides: str) -> Config:
    small = [
        *(f"run_dir={run_dir}", "device=cpu", "world.num_texts=4", "world.num_tokens=6"),
        *("training.steps=60", "algorithm.args={minibatch_size:12,epochs:1}"),
        *("evaluation.episodes=3", "world.args.n_samples=3"),
    ]
    return compose("rl4lms/increasing_numbers_ppo", [*small, *overrides])


def _rollout(config: Config, processes: Processes | None = None):
    policy = policy_of(config, learns=True)
    algorithm = algorithm_of(config, policy)
    share = (processes or Processes()).share(config.world.num_texts)
    collector = world_of(config).collector(policy, algorithm, share)
    return policy, collector.collect(policy, generator=torch.Generator().manual_seed(0))


def test_texts_are_rewarded_at_their_last_token(tmp_path: Path) -> None:
    policy, (rollout, texts) = _rollout(_config(tmp_path, "reward.increasing_numbers.args.min_tokens=2"))
    assert rollout.actions.shape == (6, 4) and rollout.mask is not None
    for column, text in enumerate(texts):
        length = int(rollout.mask[:, column].sum())
        assert length == text.length and bool(rollout.dones[length - 1, column])
        assert rollout.rewards[length - 1, column] == pytest.approx(text.episode_return)
        assert not rollout.rewards[: length - 1, column].any() and not rollout.rewards[length:, column].any()
        prompt = list(rollout.observations[column].prompt)
        whole, read = (
            policy.lm.tokenizer.decode(tokens, skip_special_tokens=True)
            for tokens in (prompt + rollout.actions[:length, column].tolist(), prompt)
        )
        assert whole == read + text.record["generation"]
        assert text.figures["kl"] == pytest.approx(0, abs=1e-5)  # the policy still equals its reference


def test_texts_that_do_not_end_are_truncated(tmp_path: Path) -> None:
    policy, (rollout, _) = _rollout(_config(tmp_path, "world.num_texts=16"))
    assert rollout.mask is not None and rollout.truncated is not None
    last = rollout.actions.gather(0, rollout.mask.sum(0, keepdim=True) - 1)[0]  # (num_texts,)
    assert rollout.truncated.tolist() == [token not in policy.lm.end_tokens.ids for token in last.tolist()]
    assert rollout.mask[:, rollout.truncated].all() and 0 < rollout.truncated.sum() < 16
    assert Rollout.concatenate([rollout, rollout]).truncated.tolist() == rollout.truncated.tolist() * 2


def test_two_processes_write_the_texts_of_one(tmp_path: Path) -> None:
    config = _config(tmp_path)
    _, (whole, texts) = _rollout(config)
    shares = [_rollout(config, Processes(rank, 2))[1] for rank in (0, 1)]
    assert torch.equal(torch.cat([r.actions for r, _ in shares], dim=1), whole.actions)
    assert [t.record for _, local_texts in shares for t in local_texts] == [t.record for t in texts]


def test_groups_are_texts_to_one_prompt(tmp_path: Path) -> None:
    config = _config(tmp_path, "world.texts_per_prompt=2")
    _, (rollout, texts) = _rollout(config)
    assert rollout.groups is not None and rollout.groups.tolist() == [0, 0, 1, 1]
    assert texts[0].record["sample_id"] == texts[1].record["sample_id"]
    with pytest.raises(ConfigError, match="texts_per_prompt=3"):
        _rollout(_config(tmp_path, "world.texts_per_prompt=3"))


def test_prompts_are_chat_turns_of_a_user(tmp_path: Path) -> None:
    words = ("world.chat=true", "world.system=Count upwards.", "world.max_prompt_length=30")
    policy, (rollout, texts) = _rollout(_config(tmp_path / "run", *words))
    read = [policy.lm.tokenizer.decode(text.prompt) for text in rollout.observations]
    assert all(one.startswith("Count upwards.") for one in read)
    for one, text in zip(read, texts, strict=True):
        assert text.record["prompt"].strip()[-3:] in one
    _, (plain, _) = _rollout(_config(tmp_path / "run"))
    assert [len(text.prompt) for text in plain.observations] != [len(t.prompt) for t in rollout.observations]
    with pytest.raises(ConfigError, match=r"raise world\.max_prompt_length"):
        _rollout(_config(tmp_path / "run", *words[:2], "world.max_prompt_length=3"))


def _cloning(folder: Path, count: int, *overrides: str) -> Config:
    """Return the config of a run that learns "turn left" as the reference for each of ``count`` prompts."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"ask": f"go {i}", "say": "turn left"}) + "\n" for i in range(count)))
    pool = f"world={{pool:jsonl,args:{{path:{data},prompt_column:ask,reference_column:say}}}}"
    cloning = ["algorithm.id=bc", "~algorithm.args", "algorithm.args={objective:text,learning_rate:1e-2}"]
    return _config(folder / "run", *cloning, "~world.args", pool, *overrides)


def test_references_are_learnt_word_for_word(tmp_path: Path) -> None:
    config = _cloning(tmp_path, 3, "algorithm.args.minibatch_size=4", "training.steps=400")
    policy, (rollout, _) = _rollout(config)
    tokenizer = policy.lm.tokenizer
    assert rollout.mask is not None
    ids = rollout.actions[rollout.mask[:, 0], 0].tolist()
    assert tokenizer.decode(ids) == "turn left" + tokenizer.eos_token
    train(config, Console(quiet=True))
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert losses[-1] < losses[0] / 4


def test_a_pass_over_references_ends_with_a_short_update(tmp_path: Path) -> None:
    """An update of eight texts contains at most the available references."""
    config = _cloning(tmp_path, 6, "algorithm.args.minibatch_size=2", "world.num_texts=8")
    policy = policy_of(config)
    steps = []
    algorithm = algorithm_of(config, policy)
    algorithm.optimizer.step = lambda *args, **settings: steps.append(1)
    collector = world_of(config).collector(policy, algorithm, slice(0, 8))
    tokens, updates = collector.in_passes(2)
    generator = torch.Generator()
    rollouts = [collector.collect(policy, generator=generator)[0] for _ in range(updates)]
    assert updates == 2 and tokens == sum(one.num_transitions for one in rollouts)
    texts = [int(one.mask.any(0).sum()) for one in rollouts]
    assert texts[0] == texts[1] <= 6
    algorithm.update(policy, rollouts[0], generator=generator)
    assert len(steps) == math.ceil(texts[0] / 2)


def test_a_run_resumes_validates_and_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["evaluation.every=2", "evaluation.metrics=[{id:diversity},{id:increasing_numbers}]"]
    train(_config(tmp_path / "whole", *parts), Console(quiet=True))
    stopped = _config(tmp_path / "stopped", *parts)
    with open_run(Path(stopped.run_dir), stopped.model_dump()):
        assert not Trainer(stopped, tmp_path / "stopped", print).loop(Console(quiet=True), lambda: True)
    train(stopped, Console(quiet=True))

    assert figures(tmp_path / "whole") == figures(tmp_path / "stopped")
    rows = read_rows(tmp_path / "whole" / "validation.jsonl")
    assert [row["update"] for row in rows][:2] == [0, 2] and "reward" in rows[0]["metrics"]
    assert rows[-1]["update"] == read_metrics(tmp_path / "whole")[-1]["update"]
    assert any(b"validation/reward" in p.read_bytes() for p in (tmp_path / "whole" / "tensorboard").iterdir())
    assert rows == read_rows(tmp_path / "stopped" / "validation.jsonl")
    assert main(["evaluate", str(tmp_path / "whole"), "--split", "test", "--episodes", "200"]) == 0
    printed = capsys.readouterr().out
    assert "zero-shot" in printed and "test has only 3 texts" in printed
    written = tmp_path / "whole" / "predictions" / "test-trained.jsonl"
    row = json.loads(written.read_text().split("\n")[0])
    assert {"sample_id", "prompt", "generation", "references", "metrics"} == set(row)
    write_rows(written, [row | {"generation": "one\u2028line"}])  # Unicode counts this as two lines
    assert main(["report", str(tmp_path / "whole")]) == 0
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "one\u2028line" in page and "Texts: test-trained" in page and "Validation" in page
    meanwhile = page.partition("Texts during training")[2].partition("</section>")[0]
    updates = re.findall(r"update (\d+) · reward", meanwhile)
    assert list(map(int, updates)) == [row["update"] for row in read_metrics(tmp_path / "whole")]


def _target_tokenizer(*around: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words "turn left now", with the given tokens around a text."""
    vocabulary = {word: i for i, word in enumerate(["<s>", "</s>", "turn", "left", "now"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if around:
        special = [(token, vocabulary[token]) for token in around if token != "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(single=" ".join(around), special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>")


@pytest.mark.parametrize(
    ("around", "has_decoder", "learnt"),
    [
        ((), False, ["turn", "left", "now", "</s>"]),
        (("<s>", "$A"), False, ["turn", "left", "now", "</s>"]),  # Llama
        (("$A", "</s>"), True, ["turn", "left", "now", "</s>"]),  # T5
        (("<s>", "$A", "</s>"), True, ["<s>", "turn", "left", "now", "</s>"]),  # BART
        (("<s>", "$A"), True, ["<s>", "turn", "left", "now", "</s>"]),
    ],
)
def test_a_reference_has_its_models_special_tokens_and_ends_only_if_it_is_whole(
    around: tuple[str, ...], has_decoder: bool, learnt: list[str]
) -> None:
    tokenizer = _target_tokenizer(*around)
    order = SampleOrder([Sample("a", "turn", ("turn left now",))], 0, replacement=False)
    for num_tokens in range(1, 8):
        references = References(order, PromptEncoder(tokenizer), 1, slice(0, 1), num_tokens, has_decoder)
        ids = references._tokens("turn left now")
        assert tokenizer.convert_ids_to_tokens(ids) == learnt[:num_tokens]
        assert references.in_passes(2)[0] == 2 * min(num_tokens, len(learnt))


def test_metrics_and_rewards_get_the_language_model_under_training_or_the_one_they_name(tmp_path: Path) -> None:
    config = _config(tmp_path, "~reward", "reward.causal_perplexity={}")
    policy = policy_of(config)
    reward = _measured(config, policy).parts["causal_perplexity"].reward
    assert isinstance(reward, CausalPerplexity) and reward.lm is policy.lm
    judge = "{id:causal_perplexity,args:{lm:starter-causal,device:cpu}}"
    named = _config(
        tmp_path, "model.path=starter", "~reward", f"reward.judged={judge}", f"evaluation.metrics=[{judge}]"
    )
    policy = policy_of(named)
    samples = (["go"], ["left"], [["go left and then go right"]])
    perplexity = (
        make_metrics(named.evaluation.metrics, policy)[0].compute(*samples)["fluency_metrics/perplexity"].corpus
    )
    reward = _measured(named, policy).parts["judged"].reward
    assert policy.lm.is_encoder_decoder and reward(*samples).item() == pytest.approx(perplexity)


def _measured(config: Config, policy: Any) -> Any:
    return make_measured_reward(world_of(config), policy)
