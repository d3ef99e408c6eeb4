"""BERTScore (Zhang et al. 2020): words matched by the cosine of their contextual embeddings."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.metrics.metric import (
    Figures,
    Meta,
    Metric,
    References,
    Texts,
    check_library,
    check_model,
    library,
    loading,
    mean_of,
    metrics,
)
from groundling.runtime.devices import find_device


@metrics.register("bert_score")
@dataclass(kw_only=True)
class BertScore(Metric):
    """F1 of the library bert-score, of the best reference; 0 if a text is empty."""

    language: str = "en"
    """Chooses the model: roberta-large for English, bert-base-multilingual-cased for most others."""
    model_name: str | None = None
    """Folder or hub id of another model."""
    num_layers: int | None = None
    """Layer of the embeddings; needed with a ``model_name`` that bert-score does not know."""
    batch_size: Annotated[int, Ge(1)] = 64
    device: str = "auto"

    needs_references = True

    _scorer: Any = field(default=None, init=False, repr=False)

    def check(self) -> None:
        check_library("bert_score")
        if self.model_name is not None:
            check_model("model of BERTScore", self.model_name)

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
            raise ConfigError(f"bert_score.num_layers must be given with model_name={name}: which layer's embeddings?")
        with loading("model of BERTScore", name), quietly():
            return bert_score.BERTScorer(
                model_type=name, num_layers=self.num_layers, device=str(find_device(self.device))
            )
