"""Settings for generating texts for a pool's prompts, and functions that read and encode the prompts."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from transformers import PreTrainedTokenizerBase

from groundling.envs.text_generation import Sample, pools
from groundling.envs.text_generation.columns import MESSAGES, FilePool
from groundling.envs.text_generation.env import Side, encode_prompts
from groundling.envs.text_generation.pools import Split
from groundling.errors import ConfigError, GroundlingError, foreign, warn_caller
from groundling.fields import ArgumentsOf, CommandLineOnly, Ge, OfEvaluation, ReadByModel
from groundling.lm.write.sampling import check_generation
from groundling.metrics.tokens import post_processors
from groundling.policies.text_states import TokenPrompt
from groundling.policies.token import TokenPolicy
from groundling.registry import ComponentConfig
from groundling.rewards import measures
from groundling.tokenization.chat import Chat
from groundling.tokenization.encoding import EndTokens, TextEncoder
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig

_SPLITS: tuple[Split, ...] = ("train", "val", "test")
_LONGEST_PROMPT = 1024  # Tokens, unless world.max_prompt_length is set


class WritingConfig(WorldConfig):
    """A pool of prompts for which texts are generated, or whose references are learned."""

    ROWS: ClassVar[str] = "num_texts"
    STEPS: ClassVar[str] = "num_tokens"
    PLACE: ClassVar[str] = "pool"

    id: str = "writing"
    pool: Annotated[str, OfEvaluation]
    """Id of the pool; see `groundling list pools`."""
    args: Annotated[dict[str, Any], OfEvaluation, ArgumentsOf(pools, "pool")] = {}
    """Keyword arguments of the pool."""
    num_texts: Annotated[int, Ge(1)] = 32
    """Number of texts generated per update."""
    num_tokens: Annotated[int, Ge(1), OfEvaluation] = 40
    """Maximum number of tokens per text."""
    texts_per_prompt: Annotated[int, Ge(1)] = 1
    """Number of texts per prompt in an update: the group size of RLOO and GRPO (usually 4 to 16), otherwise 1."""
    replacement: bool = True
    """Sample the prompts with replacement (as in RL4LMs), instead of in epochs that contain every prompt once."""
    max_prompt_length: Annotated[int | None, Ge(1), OfEvaluation] = 128
    """Number of tokens to which longer prompts are truncated. If null, the lower of 1,024 and the model's limit."""
    prompt_truncation_side: Annotated[Literal["left", "right"], OfEvaluation] = "left"
    """Side on which prompts are truncated."""
    chat: Annotated[bool, OfEvaluation] = False
    """Format a prompt as a user message and the text as the assistant's answer, using the model's chat template."""
    system: Annotated[str | None, OfEvaluation, ReadByModel] = None
    """System prompt for chat. If null, the template's default is used, if it has one."""

    @property
    def title(self) -> str:
        """The pool's name; for the user's own data, the name of the file."""
        path = self.args.get("path")
        path = next(iter(path.values()), None) if isinstance(path, Mapping) else path
        return Path(path).stem if isinstance(path, str) else self.pool

    def read_prompts(self) -> str:
        """Read the prompts, set ``chat`` if they are conversations, and return a one-line description of the splits.

        Raises:
            GroundlingError: The prompts are missing, or in an unsupported format.
        """
        training, validation, test = (samples_of(self, split) for split in _SPLITS)
        if isinstance(training[0].meta.get(MESSAGES), list):
            self.chat = True
        known, used = set(map(_question, training)), f"{self.title}: {len(training)} samples for training"
        if known.issuperset(map(_question, test)):
            return f"{used}; too few prompts to hold some out, so evaluations use training prompts"
        same = " (the same prompts)" if set(map(_question, validation)) == set(map(_question, test)) else ""
        return f"{used}, {len(validation)} held out for validation and {len(test)} for evaluation{same}"

    def check(self) -> None:
        if self.num_texts % self.texts_per_prompt:
            raise ConfigError(
                f"world.texts_per_prompt={self.texts_per_prompt} must divide world.num_texts={self.num_texts}"
            )

    def unused(self, use: Use) -> Mapping[str, str]:
        idle = {"model.max_prompt_tokens": "prompts are truncated to world.max_prompt_length"}
        if not self.chat:
            idle["world.system"] = "prompts are used without a chat template (world.chat=false)"
        else:
            idle["model.add_special_tokens"] = "prompts are formatted by the chat template (world.chat=true)"
        if use.demonstrated:
            reason = "the algorithm learns from each reference in turn"
            idle |= {"world.texts_per_prompt": reason, "world.replacement": reason}
        return idle


class WritingEvaluation(EvaluationConfig):
    """Settings for texts generated for a split's prompts."""

    metrics: Annotated[list[Annotated[ComponentConfig, ArgumentsOf(measures)]], OfEvaluation] = []
    """Metrics from `groundling list metrics` with their arguments, such as [{id: rouge}]."""
    generation: Annotated[
        dict[str, Any], OfEvaluation, CommandLineOnly.of("custom_generate", "trust_remote_code")
    ] = {}
    """Arguments of Transformers' generate for evaluation, such as {num_beams: 5}. If empty, texts are sampled as in
    training. The model's generation config (except start and end tokens) and NLPO's mask are not used."""
    post_process: Annotated[str | None, OfEvaluation] = None
    """Post-processing before a text is scored: three_sentence_summary keeps three sentences; null changes nothing."""
    every: Annotated[int | None, Ge(1)] = None
    """Number of updates between evaluations on the validation split, which is also evaluated before the first and
    after the last update. If null, it is not evaluated."""
    batch_size: Annotated[int, Ge(1)] = 64
    """Number of texts generated per batch."""

    def check(self) -> None:
        check_generation("evaluation.generation", self.generation)
        if self.post_process is not None:
            post_processors.get(self.post_process)
        if "max_length" in self.generation:
            raise ConfigError(
                f"evaluation.generation.max_length={self.generation['max_length']} has no effect, because "
                "max_new_tokens (world.num_tokens by default) overrides it: set max_new_tokens instead"
            )
        if self.generation.get("max_new_tokens", 1) is None:
            raise ConfigError(
                "evaluation.generation.max_new_tokens=null sets no maximum length: set a number, or remove it to use "
                "world.num_tokens"
            )
        if (texts := self.generation.get("num_return_sequences")) not in (None, 1):
            raise ConfigError(
                f"evaluation.generation.num_return_sequences={texts} writes {texts} texts per prompt, but only one is "
                "measured: remove it"
            )


class PromptEncoder:
    """Encodes samples' prompts for a language model, truncated to ``max_prompt_length`` tokens. With a chat template,
    a prompt becomes a user message. A tokenizer without a padding token pads with its end token, which is masked.

    Attributes:
        end_token: End token of answers in training data: the end of a turn with ``chat``, otherwise the end of a text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_prompt_length: int = 128,
        prompt_truncation_side: Side = "left",
        chat: Chat | None = None,
        system: str | None = None,
        ends: EndTokens | None = None,
        add_special_tokens: bool = True,
    ) -> None:
        ends = ends or EndTokens.of(tokenizer)
        self.end_token = ends.of_text if chat is None else ends.of_turn
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.tokenizer, self.max_prompt_length = tokenizer, max_prompt_length
        self._side: Side = prompt_truncation_side
        self._chat, self._system, self._add_special_tokens = chat, system, add_special_tokens
        self._encoder = TextEncoder(tokenizer)

    def __call__(self, samples: Sequence[Sample]) -> list[TokenPrompt]:
        """Return encoded prompts; raise an error if one is empty, or a conversation is too long."""
        if self._chat is not None:
            conversations = [(self._system if s.system is None else s.system, s.earlier, s.prompt) for s in samples]
            limits = self.max_prompt_length, self._side
            try:
                return [TokenPrompt(tuple(self._chat.conversation(*said, *limits))) for said in conversations]
            except GroundlingError as error:
                raise ConfigError(f"{error}: raise world.max_prompt_length") from error
        for sample in samples:
            if sample.earlier or sample.system is not None or isinstance(sample.meta.get(MESSAGES), list):
                raise ConfigError(f"sample {sample.id} is a conversation: set world.chat=true for a chat template")
        encoded = encode_prompts(samples, self.tokenizer, self.max_prompt_length, self._side, self._add_special_tokens)
        return TokenPrompt.unpad(*encoded)

    def control_tokens(self, sample: Sample) -> set[str] | None:
        """Return the control tokens in a pool's template, or None if the sample does not mark the dataset's text."""
        if not sample.data:
            return None
        return self._encoder.spelled(self._encoder.mask_parts(sample.prompt, sample.data))

    def target(self, text: str, has_decoder: bool, allowed: Collection[str] | None = None) -> list[int]:
        """Return the token ids of a reference, without an end token unless a decoder's tokenizer adds one. Control
        tokens not in ``allowed`` are encoded as plain text with a warning; None allows all control tokens.
        """
        if self._chat is not None and not has_decoder:
            return [*self._chat.lead, *self._chat.answers([text])[0]]
        if allowed is not None and (spelled := self._encoder.spelled(text).difference(allowed)):
            warn_caller(
                f"the pool's references contain control tokens ({', '.join(sorted(spelled))}), which are learned as "
                "plain text: remove them; an end token is added to each reference automatically"
            )
            return self._encoder.encode(self._encoder.mask(text, allowed), special_tokens=has_decoder)
        return list(self.tokenizer(text_target=text, add_special_tokens=has_decoder)["input_ids"])


def make_prompt_encoder(config: WritingConfig, policy: TokenPolicy) -> PromptEncoder:
    lm, side, longest = policy.lm, config.prompt_truncation_side, config.max_prompt_length
    if longest is None:
        room = lm.max_positions or _LONGEST_PROMPT
        longest = min(_LONGEST_PROMPT, room if lm.is_encoder_decoder else max(1, room - config.num_tokens + 1))
    chat = lm.chat if config.chat else None
    if chat is not None and chat.source is None:
        warn_caller(
            "the tokenizer has no chat template, so messages are read as plain text, one per line: use a model that "
            "was trained on conversations, or prompts that are strings"
        )
    return PromptEncoder(lm.tokenizer, longest, side, chat, config.system, lm.end_tokens, lm.add_special_tokens)


def samples_of(config: WritingConfig, split: Split) -> Sequence[Sample]:
    """Return a split of a pool. Samples after the first are read on demand. Reading may raise `GroundlingError`."""
    pool = pools.create(config.pool, **config.args)
    asked = f"pool {config.pool!r} (split {split})"
    with foreign(asked):
        given = pool.prepare(split)
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise ConfigError(f"{asked} must return a list of Sample, got {given!r:.80}")
    samples = _Samples(given, asked)
    if len(samples):
        samples[0]
    return samples


def check_prompts(
    config: WritingConfig, encode: Callable[[Sequence[Sample]], object], training: Sequence[Sample], validated: bool
) -> None:
    """Raise `GroundlingError` if a prompt is empty, and warn if a held-out split contains training prompts. Only splits
    that are cheap to read are checked: val if training evaluates it (``validated``), and all splits of file-based
    pools.
    """
    pool = pools.create(config.pool, **config.args)
    splits: list[Split] = ["val", "test"] if isinstance(pool, FilePool) else ["val"] if validated else []
    trained = set(map(_question, training)) if splits else set()
    blank = [sample for sample in training if not sample.prompt.strip()]
    shared: dict[tuple[tuple[object, ...], ...], list[str]] = {}  # lists of prompts, and the splits that have them
    for split in splits if getattr(pool, "has_splits", True) else ():
        try:
            held_out = list(samples_of(config, split))
        except GroundlingError:  # raised again when the split is used
            continue
        blank += [sample for sample in held_out if not sample.prompt.strip()]
        asked = tuple(map(_question, held_out))
        if not trained.isdisjoint(asked):
            shared.setdefault(asked, []).append(split)
    if blank:
        encode(blank)  # whether spaces alone are a valid prompt depends on the tokenizer
    for asked, names in shared.items():
        both, where = [one for one in asked if one in trained], " and ".join(names)
        warn_caller(
            f"pool {config.pool!r}: {len(both)} of {len(asked)} {where} prompts are also training prompts, such as "
            f"{both[0][-1]!r:.80}: metrics of {where} include prompts that were trained on"
        )


def _question(sample: Sample) -> tuple[object, ...]:
    """Return everything that a text for this sample responds to, with the prompt last."""
    return sample.system, sample.earlier, sample.prompt


class _Samples(Sequence[Sample]):
    def __init__(self, given: Any, asked: str) -> None:
        self._given, self._asked = given, asked

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Sample]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        with foreign(self._asked):
            sample = self._given[place]
        if not isinstance(sample, Sample):
            raise ConfigError(f"{self._asked} must return a list of Sample, got {sample!r:.80} at {place}")
        return sample
