"""BERTScore (Zhang et al. 2020): words matched by the cosine of their contextual embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from groundling.errors import ConfigError, GroundlingError, pass_out_of_memory
from groundling.metrics.libraries import check_library, check_model, library
from groundling.metrics.metric import Meta, Metric, MetricResult, mean_of, metrics
from groundling.runtime.devices import find_device


@metrics.register("bert_score")
@dataclass(kw_only=True)
class BertScore(Metric):
    """F1 of the library bert-score, of the best reference; 0 where a text is empty."""

    language: str = "en"
    """Chooses the model: roberta-large for English, bert-base-multilingual-cased for most others."""
    model_name: str | None = None
    """A folder or hub id instead of the language's model."""
    num_layers: int | None = None
    """Which layer's embeddings; must be given with a ``model_name`` that bert-score does not know."""
    batch_size: int = 64
    device: str = "auto"

    needs_references = True

    _scorer: Any = field(default=None, init=False, repr=False)

    def check(self) -> None:
        """bert-score, and a model that is named."""
        check_library("bert_score", "metrics")
        if self.model_name is not None:
            check_model("model of BERTScore", self.model_name)

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``semantic/bert_score``."""
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
        from groundling.lm.load.loading import quietly

        bert_score = library("bert_score", "metrics")
        name = self.model_name or bert_score.utils.lang2model[self.language]
        if self.num_layers is None and name not in bert_score.utils.model2layers:
            raise ConfigError(f"bert_score.num_layers must be given with model_name={name}: which layer's embeddings?")
        try:
            with quietly():
                return bert_score.BERTScorer(
                    model_type=name, num_layers=self.num_layers, device=str(find_device(self.device))
                )
        except Exception as error:  # the hub, a broken folder, a missing file: Transformers raises many kinds
            pass_out_of_memory(error)
            raise GroundlingError(
                f"BERTScore's model {name} cannot be loaded (name a local one: model_name=FOLDER num_layers=N): "
                f"{(str(error).splitlines() or [''])[0]}"
            ) from error
