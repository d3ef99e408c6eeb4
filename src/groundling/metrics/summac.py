"""SummaC (Laban et al. 2022, arXiv 2111.09525): entailment of each summary sentence by the source."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from groundling.errors import ConfigError
from groundling.metrics.metric import Figures, Meta, References, Texts, mean_of, metrics
from groundling.metrics.models import ClassifierMetric
from groundling.metrics.tokens import SENTENCE_END, spaced

NLI_MODELS = {"mnli": "roberta-large-mnli", "vitc": "tals/albert-xlarge-vitaminc-mnli"}  # Hub ids by the paper's names
_LABELS = {
    "roberta-large-mnli": {"contradiction": 0, "neutral": 1, "entailment": 2},
    "tals/albert-xlarge-vitaminc-mnli": {"entailment": 0, "contradiction": 1, "neutral": 2},
}  # Labels of models whose configs do not name them
_SHORTEST_SENTENCE = 10  # Only longer sentences are used; characters of unspaced scripts count twice
_MOST_SOURCE_SENTENCES = 100
_BINS = (
    0.0, 0.01, 0.02, 0.03, 0.04, 0.07, 0.13, 0.37, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.955, 0.96, 0.965, 0.97,
    0.975, 0.98, 0.985, 0.99, 0.995, 1.0,
)  # fmt: skip
_MOST_SUMMARY_SENTENCES = 10


@dataclass(kw_only=True)
class _SummaC(ClassifierMetric):
    """Base class that computes entailment probabilities for all pairs of source and summary sentences."""

    model_name: str = "vitc"
    """ "mnli", "vitc", or a folder or hub id of a model with the labels entailment, neutral and contradiction."""

    truncation_side = "right"

    def __post_init__(self) -> None:
        self.model_name = NLI_MODELS.get(self.model_name, self.model_name)

    def pair_probabilities(self, source: str, summary: str) -> tuple[Tensor, Tensor] | None:
        """Return P(entailment) and P(contradiction), ``(source sentences, summary sentences)``; None without pairs."""
        premises, claims = _sentences(source)[:_MOST_SOURCE_SENTENCES], _sentences(summary)
        if not premises or not claims:
            return None
        pairs = [(premise, claim) for premise in premises for claim in claims]
        logits = self.logits([p for p, _ in pairs], [c for _, c in pairs])
        probabilities = logits.softmax(-1).view(len(premises), len(claims), -1)
        labels = _LABELS.get(self.model_name) or {str(name).lower(): i for i, name in self.config.id2label.items()}
        if not {"entailment", "contradiction"} <= labels.keys():
            raise ConfigError(
                f"model_name={self.model_name} has the labels {', '.join(labels)}: SummaC needs a natural language "
                "inference model with the labels entailment and contradiction (id2label in config.json)"
            )
        return probabilities[..., labels["entailment"]], probabilities[..., labels["contradiction"]]


@metrics.register("summaCZS")
@dataclass(kw_only=True)
class SummaCZeroShot(_SummaC):
    """SummaC-ZS with the prompt as source: mean of entailment minus contradiction over the generated sentences.
    Both are maxima over the source's sentences. A text without sentences of more than ten characters scores 0.
    """

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        scores = []
        for prompt, generation in zip(prompts, generations, strict=True):
            probabilities = self.pair_probabilities(prompt, generation)
            difference = probabilities[0].amax(0) - probabilities[1].amax(0) if probabilities else torch.zeros(1)
            scores.append(difference.mean().item())
        return {"consistency/summaczs": mean_of(scores)}


@metrics.register("summaCConv")
@dataclass(kw_only=True)
class SummaCConvolution(_SummaC):
    """SummaC-Conv with the prompt as source: a trained layer applied to each sentence's entailment histogram."""

    weights: str | None = None
    """File with the trained layers: summac_conv_vitc_sent_perc_e.bin (github.com/tingofurro/summac) or safetensors."""

    def check(self) -> None:
        if self.weights is None or not Path(self.weights).is_file():
            raise ConfigError(
                f"summaCConv needs its trained layers, but weights={self.weights} is not a file: download "
                "summac_conv_vitc_sent_perc_e.bin from github.com/tingofurro/summac and set weights to its path"
            )
        super().check()

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        self.check()
        path = str(self.weights)
        weights = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
        scores = []
        for prompt, generation in zip(prompts, generations, strict=True):
            probabilities = self.pair_probabilities(prompt, generation)
            scores.append(_convolved(probabilities[0] if probabilities else None, weights))
        return {"consistency/summacconv": mean_of(scores)}


def _sentences(text: str) -> list[str]:
    sentences = [sentence.strip() for line in text.splitlines() for sentence in SENTENCE_END.split(line)]
    return [sentence for sentence in sentences if len(spaced(sentence)) > _SHORTEST_SENTENCE]


def _convolved(entailment: Tensor | None, weights: dict[str, Tensor]) -> float:
    """Return P("consistent") from entailments ``(source sentences, summary sentences)`` (section 3.2.2)."""
    mean = torch.zeros(())
    if entailment is not None:
        columns = entailment.T[:_MOST_SUMMARY_SENTENCES]
        bins = torch.tensor(_BINS)
        histograms = torch.stack([torch.histogram(column.contiguous(), bins).hist for column in columns])
        mean = (histograms @ weights["mlp.weight"].T + weights["mlp.bias"]).mean()
    features = mean.expand(3)  # the layer expects minimum, mean and maximum, but the authors pass three means
    logits = weights["layer_final.weight"] @ features + weights["layer_final.bias"]
    return logits.softmax(-1)[1].item()
