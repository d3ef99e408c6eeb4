"""Metrics computed by models: sequence classifiers (learned reward, intent, BLEURT), BERTScore and perplexity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor

from groundling.errors import ConfigError, RunError, warn_caller
from groundling.fields import Ge, Provided
from groundling.metrics.metric import (
    Figures,
    Meta,
    Metric,
    MetricResult,
    References,
    Texts,
    check_library,
    check_model,
    library,
    load_model,
    loading,
    mean_of,
    metrics,
)
from groundling.runtime.devices import find_device

if TYPE_CHECKING:
    from groundling.lm import LanguageModel

END_OF_UTTERANCE = "<EOU>"  # Follows each utterance in a dialogue prompt
ACTS = ("inform", "question", "directive", "commissive")  # DailyDialog's acts 1 to 4
Output = Literal["softmax", "sigmoid", "logit"]


@dataclass(kw_only=True)
class ClassifierMetric(Metric):
    """A metric computed by a Transformers sequence classifier, which is loaded on first use."""

    model_name: str  # Folder or hub id of the classifier
    batch_size: Annotated[int, Ge(1)] = 32
    device: str = "auto"

    truncation_side = "left"

    def check(self) -> None:
        check_model("classifier", self.model_name)

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Tensor:
        """Return logits ``(len(texts), num_labels)`` of texts or of pairs (text, pair), float32 on the CPU.
        Long texts are truncated at ``truncation_side``; in a pair, the longer text is truncated first.
        """
        tokenizer, model, longest = self._loaded
        device = next(model.parameters()).device
        if not tokenizer.num_special_tokens_to_add():  # an empty text would have no tokens
            texts = [text or tokenizer.bos_token or tokenizer.pad_token for text in texts]
        rows = []
        for first in range(0, len(texts), self.batch_size):
            batch = slice(first, first + self.batch_size)
            inputs = tokenizer(
                list(texts[batch]),
                list(pairs[batch]) if pairs is not None else None,
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            )
            with torch.inference_mode():
                rows.append(model(**inputs.to(device)).logits.float().cpu())
        return torch.cat(rows)

    @cached_property
    def config(self) -> Any:
        """The model's config, loaded without its weights."""
        return check_model("classifier", self.model_name)

    def index_of(self, label: str) -> int:
        """Return the index of a label, matched exactly or, if that is unambiguous, ignoring case."""
        names = {index: str(name).strip() for index, name in self.config.id2label.items()}
        if sorted(names) != list(range(len(names))):
            raise ConfigError(
                f"{self.model_name} does not number its labels from 0 ({self.listed_labels()}): renumber id2label in "
                "its config.json, or set label_ix=INDEX"
            )
        for same in (str, str.casefold):
            found = [index for index, name in names.items() if same(name) == same(label.strip())]
            if len(found) == 1:
                return found[0]
        count = "several labels" if found else "no label"
        raise ConfigError(f"{self.model_name} has {count} {label!r}; its labels are {self.listed_labels()}")

    def listed_labels(self) -> str:
        return ", ".join(f"{index} {name!r}" for index, name in self.config.id2label.items())

    @cached_property
    def _loaded(self) -> tuple[Any, Any, int | None]:
        """The tokenizer, the model, and the maximum number of tokens that it can read (None if unlimited)."""
        tokenizer, model = load_model(
            "classifier",
            self.model_name,
            "AutoModelForSequenceClassification",
            self.device,
            truncation_side=self.truncation_side,
        )
        if tokenizer.pad_token is None:  # decoder models; padding is masked, so any token works
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        model.config.pad_token_id = tokenizer.pad_token_id
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None:  # RoBERTa and similar models start numbering positions after the padding index
            tables = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
            padding = [getattr(table, "padding_idx", None) for table in tables]
            positions -= max((index + 1 for index in padding if index is not None), default=0)
        limits = [n for n in (tokenizer.model_max_length, positions) if n is not None and n < 10**9]
        return tokenizer, model, min(limits, default=None)


@metrics.register("learned_reward")
@dataclass(kw_only=True)
class LearnedReward(ClassifierMetric):
    """A sequence classifier's output for a label, given prompt and generation (for IMDB, P(positive sentiment)).
    For a model with one output, this is the logit. With ``compat``, it is the softmax, which is 1 for one output.
    """

    label_ix: int | None = None
    """Index of the label."""
    label: str | int | None = None
    """Name of the label in the config, instead of an index (5 means "5"). Optional if the model has one output."""
    output: Output | None = None
    """"softmax" over all labels, or "sigmoid" or "logit" of the label's output. If null: "logit" for a single output
    or a regression model, "sigmoid" for a multi-label model, otherwise "softmax"."""
    include_prompt_for_eval: bool = True
    """If true, the classifier reads the prompt before the generation."""

    def __post_init__(self) -> None:
        if self.compat and self.output not in (None, "softmax"):
            raise ConfigError(f"with compat={self.compat}, output is always softmax: remove output={self.output}")
        if self.label is not None and self.label_ix is not None:
            raise ConfigError(f"set label={self.label!r} or label_ix={self.label_ix}, not both")

    def check(self) -> None:
        self._label_and_output()

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        label, output = self._label_and_output()
        texts = generations
        if self.include_prompt_for_eval:
            texts = [prompt + generation for prompt, generation in zip(prompts, generations, strict=True)]
        logits = self.logits(texts)  # (batch, num_labels)
        scores = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "logit": logits}[output]
        return {"semantic/learned_automodel_metric": mean_of(scores[:, label].tolist())}

    def _label_and_output(self) -> tuple[int, Output]:
        """Return the label's index and the type of output; raise `ConfigError` if the model does not have them."""
        config = self.config
        single = config.num_labels == 1
        if self.label is not None:
            index = self.index_of(str(self.label))
        elif single or self.label_ix is not None:
            index = self.label_ix or 0
            if not 0 <= index < config.num_labels:
                raise ConfigError(f"{self.model_name} has no label {index}; its labels are {self.listed_labels()}")
        else:
            raise ConfigError(f"learned_reward needs label=NAME or label_ix=INDEX; available: {self.listed_labels()}")
        if self.compat:
            if single:
                warn_caller(f"with compat={self.compat}, learned_reward is 1 for every text: remove compat")
            return index, "softmax"
        if single and self.output == "softmax":
            raise ConfigError(
                f"{self.model_name} has one output, whose softmax is always 1: set output=logit or output=sigmoid"
            )
        usual: dict[str | None, Output] = {"regression": "logit", "multi_label_classification": "sigmoid"}
        return index, self.output or ("logit" if single else usual.get(config.problem_type, "softmax"))


@metrics.register("intent_accuracy")
@dataclass(kw_only=True)
class IntentAccuracy(ClassifierMetric):
    """1 if a classifier assigns the dialogue act ``meta["intent"]`` (1 to 4, from DailyDialog) to an answer, else 0.
    The classifier reads the prompt's last utterance and the answer. Labels are matched to `ACTS` by name or by order.
    """

    model_name: str = "rajkumarrrk/roberta-daily-dialog-intent-classifier"

    needs_meta = ("intent",)

    def check(self) -> None:
        if self.config.num_labels < 2:
            raise ConfigError(f"{self.model_name} has one output and cannot distinguish intents: use another model")

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        self.check()
        texts = []
        for prompt, generation in zip(prompts, generations, strict=True):
            utterances = [text for text in prompt.split(END_OF_UTTERANCE) if text.strip()]
            texts.append("".join(utterances[-1:]) + generation)
        predicted = self.logits(texts).argmax(-1).tolist()
        wanted = [self._index(sample["intent"]) for sample in meta or ()]
        return {"intent/accuracy": mean_of([float(p == w) for p, w in zip(predicted, wanted, strict=True)])}

    def _index(self, intent: Any) -> int:
        """Return the label index of an act, which some pools store as a list with one element."""
        config = self.config
        labels = {str(name).lower(): index for index, name in config.id2label.items()}
        order = [labels[name] for name in ACTS] if labels.keys() >= set(ACTS) else range(config.num_labels)
        try:
            act = int(intent[0] if isinstance(intent, Sequence) and not isinstance(intent, str) else intent)
            return order[range(1, len(order) + 1).index(act)]
        except (TypeError, ValueError, IndexError) as error:
            raise RunError(
                f"meta['intent']={intent!r} must be an act from 1 to {len(order)} of {self.model_name}, whose labels "
                f"are {self.listed_labels()}"
            ) from error


@metrics.register("bleurt")
@dataclass(kw_only=True)
class Bleurt(ClassifierMetric):
    """BLEURT (Sellam et al. 2020) for the best reference, from a Transformers checkpoint (without TensorFlow)."""

    model_name: str = "Elron/bleurt-base-128"

    needs_references = True
    truncation_side = "right"

    def check(self) -> None:
        if self.config.num_labels != 1:
            raise ConfigError(
                f"BLEURT needs a regression model with one output, but {self.model_name} has the labels "
                f"{self.listed_labels()}: set model_name to a BLEURT checkpoint"
            )

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        self.check()
        flat = [text for given in references for text in given]
        repeated = [text for text, given in zip(generations, references, strict=True) for _ in range(len(given))]
        scores = self.logits(flat, repeated)[:, 0]
        best = [part.max().item() for part in scores.split([len(given) for given in references])]
        return {"semantic/bleurt": mean_of(best)}


@metrics.register("bert_score")
@dataclass(kw_only=True)
class BertScore(Metric):
    """BERTScore (Zhang et al. 2020) from the bert-score library: F1 for the best reference; 0 if a text is empty."""

    language: str = "en"
    """Determines the default model: roberta-large for English, bert-base-multilingual-cased for most others."""
    model_name: str | None = None
    """Folder or hub id of a model to use instead of the default."""
    num_layers: int | None = None
    """Layer whose embeddings are compared; required for a ``model_name`` unknown to bert-score."""
    batch_size: Annotated[int, Ge(1)] = 64
    device: str = "auto"

    needs_references = True

    _scorer: Any = field(default=None, init=False, repr=False)

    def check(self) -> None:
        check_library("bert_score")
        if self.model_name is not None:
            check_model("BERTScore model", self.model_name)

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        given = [[text for text in texts if text.strip()] for texts in references]
        scored = [i for i, text in enumerate(generations) if text.strip() and given[i]]
        scores = [0.0] * len(generations)
        if scored:
            self._scorer = self._scorer or self._load()
            _, _, f1 = self._scorer.score(
                [generations[i] for i in scored], [given[i] for i in scored], batch_size=self.batch_size
            )
            for index, score in zip(scored, f1.tolist(), strict=True):
                scores[index] = score
        return {"semantic/bert_score": mean_of(scores)}

    def _load(self) -> Any:
        self.check()
        from groundling.lm.load.model_files import quietly

        bert_score = library("bert_score")
        name = self.model_name or bert_score.utils.lang2model[self.language]
        if self.num_layers is None and name not in bert_score.utils.model2layers:
            raise ConfigError(f"bert_score needs num_layers (the layer of the embeddings) for model_name={name}")
        with loading("BERTScore model", name), quietly():
            return bert_score.BERTScorer(
                model_type=name, num_layers=self.num_layers, device=str(find_device(self.device))
            )


@metrics.register("causal_perplexity")
@dataclass(kw_only=True)
class CausalPerplexity(Metric):
    """Perplexity of a causal language model on all references, joined by blank lines.
    The text is read in windows of ``width`` tokens that start every ``stride`` tokens; each token is predicted once.
    With ``compat``, the first window's mean loss is weighted by one token too many, as in RL4LMs.
    """

    lm: Annotated["LanguageModel | str", Provided("lm", settable=str)] = field(repr=False)
    """The language model being trained, or the folder or hub id of a different one."""
    stride: Annotated[int, Ge(1)] = 512
    """Tokens between the starts of windows; smaller values give each token more context but cost more."""
    width: Annotated[int, Ge(2)] = 1024
    """Tokens per window, limited to what the model can read; the default is GPT-2's context length."""
    device: str = "auto"
    """Device of the model if ``lm`` is a folder or hub id."""

    needs_references = True

    def check(self) -> None:
        from groundling.lm.load.model_files import resolve

        config = check_model("language model", resolve(self.lm)) if isinstance(self.lm, str) else self.lm
        if config.is_encoder_decoder:
            raise ConfigError("causal_perplexity needs a causal language model: set lm=FOLDER_OR_ID")

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        lm = self._loaded
        text = "\n\n".join(text for given in references for text in given)
        tokens = lm.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0].to(lm.device)  # (num_tokens,)
        total, count = 0.0, 0
        context = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
        width = min(self.width, context or self.width)
        stride = min(self.stride, width)
        for first in range(0, len(tokens), stride):  # the first token to predict; earlier ones are its context
            start, end = max(0, first + stride - width), min(first + stride, len(tokens))
            predicted = end - max(first, start + 1)  # a window's first token cannot be predicted
            if predicted < 1:
                continue
            with torch.no_grad(), lm.autocast():
                states = lm.backbone.read(tokens[None, start : end - 1], None, None)[0, -predicted:]
                logits = lm.backbone.logits(states).float()  # (predicted, vocabulary)
            wanted = tokens[end - predicted : end].to(logits.device)
            losses = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
            weight = end - first if self.compat else predicted
            total += losses.item() / predicted * weight
            count += weight
        return {"fluency_metrics/perplexity": MetricResult(math.exp(total / count) if count else math.nan)}

    @cached_property
    def _loaded(self) -> "LanguageModel":
        from groundling.lm import LanguageModel

        self.check()
        return LanguageModel.from_pretrained(self.lm, device=self.device) if isinstance(self.lm, str) else self.lm
