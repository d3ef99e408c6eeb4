"""What CommonGen's sentences are rewarded for: not repeating the prompt, and being preferred by a model of people."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.envs.text_generation.words import words
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.metrics.libraries import check_library, check_model, library, loading
from groundling.metrics.meteor import Meteor
from groundling.metrics.metric import Meta
from groundling.rewards.reward import Reward, rewards
from groundling.runtime.devices import find_device

PREFIX = "generate a sentence with:"
"""How the prompts begin that the original trained on."""


@rewards.register("common_gen_repeat_penalty_batched")
@rewards.register("common_gen_repeat_penalty")
@dataclass(kw_only=True)
class RepeatPenalty(Reward):
    """-1 for a sentence that repeats its prompt: the concepts as they stood there, the prefix, or talk of the task."""

    prefix: str = PREFIX

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> list[float]:
        """-1 or 0 for each sample."""
        scores = []
        for index, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
            forbidden = {self.prefix.strip().lower(), "generate", "sentence", self._in_prompt(prompt)}
            if meta is not None and "concepts" in meta[index]:
                forbidden.add(" ".join(concepts(meta[index]["concepts"])).lower())
            text = generation.lower()
            scores.append(-1.0 if any(part in text for part in forbidden if part) else 0.0)
        return scores

    def _in_prompt(self, prompt: str) -> str:
        """The concepts as the prompt has them, without its end."""
        _, _, rest = prompt.lower().partition(self.prefix.strip().lower())
        return rest.strip().rstrip(".").strip()


def concepts(given: Any) -> list[str]:
    """The concepts of a sample's meta, given as a list or in one string."""
    return given.split() if isinstance(given, str) else [str(concept) for concept in given]


@rewards.register("common_gen_preference_model")
@dataclass(kw_only=True)
class PreferenceModel(Reward):
    """How likely an encoder-decoder model trained on people's choices calls a sentence good, less for missing concepts.

    P(good) / (1 + ``missing_coeff`` · missing concepts) + ``meteor_coeff`` · METEOR. ``meta["concepts"]`` is needed.
    A concept is there if a word of its stem is.
    """

    needs_references = True

    model_name: str | None = None
    """Folder or hub id of a T5-like model that answers with one of two words; the authors' are not on the hub."""
    model_type: str = "11b"
    """Which of the authors' models (a key of the original's configs); named in the message that asks for it."""
    good: str = "good"
    bad: str = "bad"
    template: str = "{concepts} || {generation}"
    """What the model reads."""
    missing_coeff: float = 1.0
    meteor_coeff: float = 0.0
    batch_size: int = 8
    device: str = "auto"

    _loaded: Any = field(default=None, init=False, repr=False)

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> Tensor:
        """The preference for each sample."""
        if meta is None or any("concepts" not in sample for sample in meta):
            raise RunError("common_gen_preference_model needs 'concepts' in the meta of every sample")
        wanted = [concepts(sample["concepts"]) for sample in meta]
        texts = [
            self.template.format(concepts=" ".join(given), generation=generation)
            for given, generation in zip(wanted, generations, strict=True)
        ]
        missing = torch.tensor([_missing(*pair) for pair in zip(wanted, generations, strict=True)])
        preference = self._probabilities(texts) / (1 + self.missing_coeff * missing)
        if not self.meteor_coeff:
            return preference
        meteor = Meteor(compat=self.compat).compute(prompts, generations, references, meta)["lexical/meteor"]
        return preference + self.meteor_coeff * torch.tensor(meteor.sentences)

    def _probabilities(self, texts: Sequence[str]) -> Tensor:
        """``(batch,)`` float32: of the two words' first tokens, how likely the good one is."""
        tokenizer, model = self._load()
        answers = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (self.good, self.bad)]
        if answers[0] == answers[1] or tokenizer.unk_token_id in answers:
            raise ConfigError(
                f"the tokenizer of {self.model_name} does not tell good={self.good!r} and bad={self.bad!r} apart by "
                f"their first tokens, {tokenizer.convert_ids_to_tokens(answers)}: give other words"
            )
        device = model.get_input_embeddings().weight.device
        rows = []
        for first in range(0, len(texts), self.batch_size):
            inputs = tokenizer(
                list(texts[first : first + self.batch_size]), padding=True, truncation=True, return_tensors="pt"
            )
            start = torch.full((len(inputs["input_ids"]), 1), model.config.decoder_start_token_id)
            with torch.inference_mode():
                output = model(
                    input_ids=inputs["input_ids"].to(device),
                    attention_mask=inputs["attention_mask"].to(device),
                    decoder_input_ids=start.to(device),
                )
            rows.append(output.logits[:, 0, answers].float().softmax(-1)[:, 0].cpu())
        return torch.cat(rows)

    def _named(self) -> str:
        if self.model_name is None:
            raise GroundlingError(
                f"common_gen_preference_model needs model_name=FOLDER: the authors' {self.model_type} model is not "
                "on the hub; its address is in the README of github.com/allenai/RL4LMs"
            )
        return self.model_name

    def check(self) -> None:
        """The model; NLTK."""
        check_model("preference model", self._named())
        check_library("nltk", "metrics")
        if self.meteor_coeff:
            Meteor().check()

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            self.check()
            name = self._named()
            from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

            from groundling.lm.load.loading import load_pretrained, quietly

            with loading("preference model", name):
                with quietly():
                    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
                model: Any = load_pretrained(AutoModelForSeq2SeqLM, name, trust_remote_code=False)
            self._loaded = tokenizer, model.eval().to(find_device(self.device))
        return self._loaded


def _missing(wanted: Sequence[str], generation: str) -> int:
    """How many of the concepts no word of the generation has the stem of."""
    stem = library("nltk.stem.porter", "metrics").PorterStemmer().stem
    there = {stem(word.lower()) for word in words(generation)}
    return sum(stem(concept.lower()) not in there for concept in wanted)
