"""Metrics that use a model, tested with tiny models."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from groundling import metrics, rewards
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.lm import LanguageModel
from tests.metrics.conftest import WORDS, tokenizer
from tests.thorough import one_in

PROMPTS = ["the cat", "the film"]
GENERATIONS = [" sat on the mat .", " was bad ."]


def ids(text: str) -> list[int]:
    return [2, *(WORDS.index(word) for word in text.split()), 3]


@pytest.mark.parametrize("with_prompt", [True, False])
def test_learned_reward_is_the_labels_probability(classifier: Callable[..., str], with_prompt: bool) -> None:
    folder = classifier(size=3)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    args = {"model_name": folder, "label_ix": 2, "include_prompt_for_eval": with_prompt, "device": "cpu"}
    metric = metrics.create("learned_reward", batch_size=1, **args)
    result = metric.compute(PROMPTS, GENERATIONS, [[], []])["semantic/learned_automodel_metric"]
    with torch.no_grad():
        for prompt, generation, score in zip(PROMPTS, GENERATIONS, result.sentences or [], strict=True):
            text = prompt + generation if with_prompt else generation
            logits = model(torch.tensor([ids(text)])).logits[0]
            assert score == pytest.approx(logits.softmax(-1)[2].item(), abs=1e-5)
    reward = rewards.create("learned_reward", batch_size=2, **args)  # padded to the same length
    assert reward(PROMPTS, GENERATIONS, [[], []]).tolist() == pytest.approx(result.sentences, abs=1e-5)


def test_long_texts_are_truncated_at_the_beginning(classifier: Callable[..., str]) -> None:
    metric = metrics.create("learned_reward", model_name=classifier(), label_ix=0, device="cpu")
    # The last 30 words are equal, and there are 2 special tokens.
    texts = ["cat " * 40 + "dog ran", "dog " * 40 + "cat " * 28 + "dog ran"]
    scores = metric.compute(["", ""], texts, [[], []])["semantic/learned_automodel_metric"].sentences
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


@pytest.mark.parametrize("kind", ["Bert", "Camembert", "MPNet", "XLMRobertaXL"])
def test_texts_are_truncated_to_the_models_positions(kind: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=34,
        pad_token_id=0 if kind == "Bert" else 1,
    )
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    made = tokenizer()
    made.model_max_length, made.pad_token = 10**30, WORDS[config.pad_token_id]
    for one in (model, made):
        one.save_pretrained(tmp_path)
    texts = ["cat " * 40, "cat " * (32 if kind == "Bert" else 30)]
    learned = metrics.create("learned_reward", model_name=str(tmp_path), label_ix=0, device="cpu")
    scores = learned.compute(["", ""], texts, [[], []])["semantic/learned_automodel_metric"].sentences
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def _learned(folder: str, **args: object) -> float:
    """Return the learned_reward of a text."""
    metric = metrics.create("learned_reward", model_name=folder, device="cpu", **args)
    return metric.compute(["p"], ["g"], [[]])["semantic/learned_automodel_metric"].corpus


def test_a_reward_model_with_one_output_gives_its_logit(classifier: Callable[..., str]) -> None:
    folder = classifier([-2.5])
    for args in ({}, {"label_ix": 0}, {"label": "LABEL_0"}, {"output": "logit"}):
        assert _learned(folder, **args) == pytest.approx(-2.5)
    assert _learned(folder, output="sigmoid") == pytest.approx(1 / (1 + math.exp(2.5)))
    with pytest.warns(UserWarning, match="learned_reward is 1 for every text"):
        assert _learned(folder, label_ix=0, compat="rl4lms") == 1  # as in the original
    with pytest.raises(ConfigError, match=r"whose softmax is always 1: set output=logit or output=sigmoid"):
        metrics.create("learned_reward", model_name=folder, output="softmax").check()


def test_learned_reward_finds_labels_by_name(classifier: Callable[..., str]) -> None:
    folder = classifier([0.0, 2.0, 1.0], labels=["neutral", "Positive", "negative"])
    wanted = torch.tensor([0.0, 2.0, 1.0]).softmax(-1)
    assert _learned(folder, label="positive") == pytest.approx(wanted[1].item())
    assert _learned(folder, label_ix=2) == pytest.approx(wanted[2].item())
    assert _learned(folder, label="positive", output="logit") == 2.0
    for args in ({"label": "happy"}, {"label_ix": 3}, {"label_ix": -1}, {}):
        with pytest.raises(ConfigError, match="0 'neutral', 1 'Positive', 2 'negative'"):
            metrics.create("learned_reward", model_name=folder, **args).check()
    for args in (
        {"label": "positive", "label_ix": 1},
        {"output": "odds"},
        {"label_ix": 1, "compat": "rl4lms", "output": "logit"},
    ):
        with pytest.raises(ConfigError, match=r"not both|output must be|remove output=logit"):
            metrics.create("learned_reward", model_name=folder, **args)


def test_labels_may_differ_by_case_or_be_numbers(classifier: Callable[..., str]) -> None:
    def odd(*labels: str, **args: object) -> float:
        return _learned(classifier([1.0, 2.0], labels=labels), output="logit", **args)

    assert odd("pos", "POS", label="pos") == 1
    assert odd("1", "0", label=0) == 2  # the label with the name "0", not the first label
    assert odd("ОТРИЦАТЕЛЬНЫЙ", "Положительный", label="положительный") == 2
    with pytest.raises(ConfigError, match=r"has several labels 'x'; its labels are 0 'x', 1 'x'"):
        odd("x", "x", label="x")
    folder = classifier([1.0, 2.0])
    config = json.loads((Path(folder) / "config.json").read_text())
    (Path(folder) / "config.json").write_text(json.dumps(config | {"id2label": {"1": "neg", "2": "pos"}}))
    with pytest.raises(ConfigError, match=r"does not number its labels from 0 \(1 'neg', 2 'pos'"):
        _learned(folder, label="neg")
    assert _learned(folder, label_ix=0, output="logit") == 1


def test_a_classifier_needs_no_padding_token(classifier: Callable[..., str]) -> None:
    folder = classifier(size=2)
    args = {"model_name": folder, "label_ix": 1, "device": "cpu"}
    wanted = rewards.create("learned_reward", **args)(PROMPTS, GENERATIONS, [[], []])
    path = Path(folder) / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in settings.items() if k not in ("pad_token", "eos_token")}))
    assert torch.allclose(rewards.create("learned_reward", **args)(PROMPTS, GENERATIONS, [[], []]), wanted)


def test_an_empty_text_has_one_score_without_special_tokens(tmp_path: Path) -> None:
    made = tokenizer()
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, num_labels=1, pad_token_id=0
    )
    for one in (transformers.GPT2ForSequenceClassification(config), made):
        one.save_pretrained(tmp_path)
    args = {"model_name": str(tmp_path), "include_prompt_for_eval": False, "device": "cpu"}
    reward = rewards.create("learned_reward", **args)
    alone, together = (reward(texts, texts, [[]] * len(texts)) for texts in ([""], ["", "the cat sat"]))
    assert together[0] == pytest.approx(alone[0])


@pytest.mark.parametrize(
    ("problem", "wanted"), [("multi_label_classification", 1 / (1 + math.exp(-1))), ("regression", 1.0)]
)
def test_the_output_depends_on_the_models_problem_type(
    classifier: Callable[..., str], problem: str, wanted: float
) -> None:
    assert _learned(classifier([3.0, 1.0], problem_type=problem), label_ix=1) == pytest.approx(wanted)


@pytest.mark.parametrize("intent", [3, [3]])
def test_intents_are_acts_minus_one(classifier: Callable[..., str], intent: object) -> None:
    metric = metrics.create("intent_accuracy", model_name=classifier([0.0, 0, 9, 0]), device="cpu")
    seen: list[str] = []
    logits = metric.logits
    metric.logits = lambda texts: seen.extend(texts) or logits(texts)
    prompts = ["the cat<EOU>", "the dog ran <EOU> the cat <EOU>"]
    results = metric.compute(prompts, ["sat", "ran"], [[], []], [{"intent": intent}, {"intent": 1}])
    assert seen == ["the catsat", " the cat ran"]  # the last utterance, and the answer
    assert results["intent/accuracy"] == metrics.MetricResult(0.5, [1.0, 0.0])
    with pytest.raises(RunError, match="'intent'"):
        metric.compute(["p"], ["g"], [[]])


@pytest.mark.usefixtures("with_wordnet")
def test_the_intent_reward_adds_meteor_and_with_compat_its_running_mean(classifier: Callable[..., str]) -> None:
    args = {"model_name": classifier([0.0, 9.0]), "device": "cpu", "intent_coeff": 0.75, "auto_coeff": 0.25}
    batch = (["p", "p"], ["hello", "x"], [["hello"], ["y"]], [{"intent": 2}, {"intent": 1}])
    assert rewards.create("intent_accuracy", **args)(*batch).tolist() == [0.75 + 0.25 * 0.5, 0.0]
    reward = rewards.create("intent_accuracy", compat="rl4lms", **args)
    ten = "a b c d e f g h i j"
    meteor = metrics.create("meteor", compat="rl4lms").compute(["p"], [ten], [[ten]])["lexical/meteor"].corpus
    first = reward(["p"], [ten], [[ten]], [{"intent": 1}])
    assert first.item() == pytest.approx(0.25 * meteor)
    resumed = rewards.create("intent_accuracy", compat="rl4lms", **args)
    resumed.load_state_dict(json.loads(json.dumps(reward.state_dict())))
    for either in (reward, resumed):
        assert either(["p"], ["x"], [["y"]], [{"intent": 1}]).item() == pytest.approx(0.25 * meteor / 2)


def test_intents_are_found_by_name_and_need_a_label(classifier: Callable[..., str]) -> None:
    def accuracy(folder: str, intent: int) -> float:
        metric = metrics.create("intent_accuracy", model_name=folder, device="cpu")
        return metric.compute(["p"], ["g"], [[]], [{"intent": intent}])["intent/accuracy"].corpus

    folder = classifier([0.0, 9, 0, 0], labels=["commissive", "Directive", "inform", "question"])
    assert [accuracy(folder, act) for act in (1, 2, 3, 4)] == [0, 0, 1, 0]
    for intent in (0, 5):
        with pytest.raises(RunError, match=rf"meta\['intent'\]={intent} must be an act from 1 to 4 .* 1 'Directive'"):
            accuracy(folder, intent)
    with pytest.raises(ConfigError, match="one output and cannot distinguish intents"):
        accuracy(classifier([1.0]), 1)


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("bleurt", {}, r"one output, but .* has the labels 0 'LABEL_0', 1 'LABEL_1'"),
        ("bert_score", {}, "num_layers"),
        ("summaCZS", {}, "SummaC needs a natural language inference model"),
        ("summaCConv", {}, r"summac_conv_vitc_sent_perc_e\.bin"),
    ],
)
def test_an_unsuitable_model_is_refused(
    id: str, args: dict[str, Any], message: str, classifier: Callable[..., str], tmp_path: Path
) -> None:
    sample = (["The cat sat on the mat."], ["The cat sat there."], [["a"]], [{"concepts": ["a"]}])
    folder = classifier(size=2)
    with pytest.raises(GroundlingError, match=message):
        rewards.create(id, model_name=folder, device="cpu", **args)(*sample)
    if id == "summaCConv":
        return
    with pytest.raises(GroundlingError, match="cannot be loaded"):
        rewards.create(id, model_name=str(tmp_path / "nowhere"), device="cpu", **args)(*sample)
    (Path(folder) / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "megatron.hostile"})
    )
    with pytest.raises(GroundlingError, match=r"contains an adapter \(adapter_config.json\)"):
        rewards.create(id, model_name=folder, device="cpu", **args).check()


def test_bleurt_is_the_regression_of_the_best_reference(classifier: Callable[..., str]) -> None:
    folder = classifier(size=1)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    references = [["the dog ran", "the cat"], ["bad film"]]
    results = metrics.create("bleurt", model_name=folder, device="cpu").compute(
        PROMPTS, ["cat sat", "film was bad"], references
    )
    pairs = [("the dog ran", "cat sat"), ("the cat", "cat sat"), ("bad film", "film was bad")]
    scores = []
    for first, second in pairs:
        tokens = torch.tensor([[*ids(first), *ids(second)[1:]]])  # the reference comes first, as in BLEURT's training
        with torch.no_grad():
            scores.append(model(tokens).logits.item())
    wanted = [max(scores[:2]), scores[2]]
    assert results["semantic/bleurt"].sentences == pytest.approx(wanted, abs=1e-5)


def test_bert_score_of_equal_texts_is_one_and_of_empty_ones_zero(encoder: str) -> None:
    metric = metrics.create("bert_score", model_name=encoder, num_layers=2, device="cpu")
    generations = ["the cat sat", "", "film was bad", "the dog"]
    references = [["the dog ran", "the cat sat"], ["the mat"], [""], ["the mat ."]]
    scores = metric.compute(["p"] * 4, generations, references)["semantic/bert_score"].sentences
    assert scores[0] == pytest.approx(1, abs=1e-5) and scores[1:3] == [0.0, 0.0] and 0 < scores[3] < 1


NLI = ["entailment", "neutral", "contradiction"]
SOURCE = "The cat sat on the mat. The dog ran on the mat! It was good"


def test_summac_takes_the_maximum_over_the_sources_sentences(classifier: Callable[..., str]) -> None:
    metric = metrics.create("summaCZS", model_name=classifier(labels=NLI), device="cpu")
    whole = metric.pair_probabilities(SOURCE, "The cat sat on it. The dog was good.")
    assert whole is not None and whole[0].shape == (3, 2)  # "It was good" has eleven characters
    results = metric.compute([SOURCE] * 2, ["The cat sat on it. The dog was good.", "short"], [[], []])
    by_hand = [(whole[0][:, j].max() - whole[1][:, j].max()).item() for j in range(2)]
    assert results["consistency/summaczs"].sentences == pytest.approx([sum(by_hand) / 2, 0], abs=1e-6)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_summac_conv_by_hand(classifier: Callable[..., str], tmp_path: Path, kind: str) -> None:
    weights = {
        "mlp.weight": torch.zeros(1, 23),
        "mlp.bias": torch.tensor([0.5]),
        "layer_final.weight": torch.tensor([[0.0, 0, 0], [1.0, 2, 3]]),
        "layer_final.bias": torch.tensor([0.0, -1.0]),
    }
    weights["mlp.weight"][0, 7] = 0.25  # the bin from 0.37 to 0.90
    file = tmp_path / f"weights.{kind}"
    if kind == "bin":
        torch.save(weights, file)
    else:
        save_file(weights, file)
    folder = classifier([1.0, 0, 0], labels=NLI)  # entailment 0.576
    metric = metrics.create("summaCConv", model_name=folder, weights=str(file), device="cpu")
    results = metric.compute([SOURCE] * 2, ["The cat sat there. The dog ran on.", ""], [[], []])
    mean = 0.25 * 3 + 0.5  # for each of the two generated sentences, three source sentences are in the bin
    wanted = [1 / (1 + math.exp(-(6 * mean - 1))), 1 / (1 + math.exp(1))]
    assert results["consistency/summacconv"].sentences == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("stride", "width"), one_in(3, [(3, 12), (3, 5), (12, 12), (100, 12), (100, 7)]))
@pytest.mark.parametrize("length", [2, 11, 12, 13, 30])
def test_perplexity_is_that_of_each_token_given_its_window(causal: str, stride: int, width: int, length: int) -> None:
    """The model reads 12 tokens, or as many as the width."""
    lm = LanguageModel(AutoModelForCausalLM.from_pretrained(causal), tokenizer())
    words = [WORDS[4 + (7 * i) % 12] for i in range(length - 2)]
    references = [[" ".join(words)]]
    tokens = torch.tensor(ids(" ".join(words)))
    step = min(stride, width)
    losses = []
    for first in range(0, length, step):
        start = max(0, first + step - width)
        for place in range(max(first, start + 1), min(first + step, length)):
            with torch.no_grad():
                logits = lm.model(tokens[None, start:place]).logits[0, -1]
            losses.append(-logits.log_softmax(-1)[tokens[place]].item())
    args = {} if width == 12 else {"width": width}
    metric = metrics.create("causal_perplexity", lm=lm, stride=stride, **args)
    result = metric.compute(["p"], ["g"], references)["fluency_metrics/perplexity"]
    assert result.corpus == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)


def test_perplexity_computes_logits_only_for_what_it_predicts(causal: str) -> None:
    """Logits for a whole window of a large model would fill the memory."""
    lm = LanguageModel(AutoModelForCausalLM.from_pretrained(causal), tokenizer())
    rows: list[int] = []
    head = lm.model.get_output_embeddings()
    head.register_forward_hook(lambda _, inputs, logits: rows.append(logits.shape[-2]))
    metrics.create("causal_perplexity", lm=lm, stride=3).compute(["p"], ["g"], [["the cat sat on the mat ."] * 3])
    assert max(rows) == 3 and sum(rows) == 22  # all of the 23 tokens but the first


def test_perplexity_reads_a_folder_and_refuses_encoder_decoders(causal: str, encoder_decoder: str) -> None:
    args = (["p"], ["g"], [["the cat sat"]])
    assert metrics.create("causal_perplexity", lm=causal).compute(*args)["fluency_metrics/perplexity"].corpus > 1
    with pytest.raises(ConfigError, match="causal language model"):
        metrics.create("causal_perplexity", lm=encoder_decoder).compute(*args)


def test_the_preference_model_answers_good_or_bad(encoder_decoder: str) -> None:
    from transformers import T5ForConditionalGeneration

    meta = [{"concepts": ["cat", "mat"]}, {"concepts": "dog mat run"}]
    generations = ["the cats sat on the mat", "the dog ran"]
    args = {"model_name": encoder_decoder, "device": "cpu", "template": "{concepts} {generation}", "batch_size": 1}
    scores = rewards.create("common_gen_preference_model", missing_coeff=0.5, **args)(
        ["p", "p"], generations, [[], []], meta
    )
    model = T5ForConditionalGeneration.from_pretrained(encoder_decoder).eval()
    texts = ["cat mat the [UNK] sat on the mat", "dog mat [UNK] the dog ran"]
    for score, text, missing in zip(scores.tolist(), texts, (0, 2), strict=True):  # the second has no "run"
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids(text)]), decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
        good = logits[[WORDS.index("good"), WORDS.index("bad")]].softmax(-1)[0].item()
        assert score == pytest.approx(good / (1 + 0.5 * missing), abs=1e-5)


def test_a_template_of_the_preference_model_cannot_fill_the_memory(encoder_decoder: str) -> None:
    args = {"model_name": encoder_decoder, "device": "cpu", "template": "{concepts:999999999999}"}
    scores = rewards.create("common_gen_preference_model", **args)(["p"], ["g"], [[]], [{"concepts": ["a"]}])
    assert 0 < scores.item() < 1


def test_the_preference_model_names_what_it_needs(encoder_decoder: str) -> None:
    words = {"model_name": encoder_decoder, "good": "yes", "bad": "no", "device": "cpu"}
    with pytest.raises(ConfigError, match="cannot distinguish good='yes' from bad='no'"):
        rewards.create("common_gen_preference_model", **words)(["p"], ["g"], [[]], [{"concepts": ["a"]}])
    with pytest.raises(GroundlingError, match="needs model_name=FOLDER: the authors' 11b model"):
        rewards.create("common_gen_preference_model")(["p"], ["g"], [[]], [{"concepts": ["a"]}])
    with pytest.raises(RunError, match="'concepts'"):
        rewards.create("common_gen_preference_model", model_name=encoder_decoder)(["p"], ["g"], [[]])
