"""Prompts and references of samples as token ids."""

import warnings
from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerBase

from groundling.envs.text_generation import Sample
from groundling.envs.text_generation.prompts import Side, encode_prompts
from groundling.errors import ConfigError, GroundlingError
from groundling.policies.texts import TokenPrompt
from groundling.policies.token import TokenPolicy
from groundling.tokenization.chat import Chat
from groundling.tokenization.encoding import TextEncoder
from groundling.tokenization.end_tokens import EndTokens
from groundling.worlds.writing.config import WritingConfig


class PromptEncoder:
    """Encodes samples' prompts for a language model.

    Args:
        tokenizer: The model's tokenizer; without a padding token it pads with its end token, which masks exclude.
        max_prompt_length: Number of tokens at most; longer prompts are truncated.
        prompt_truncation_side: "left" keeps a prompt's end, "right" its beginning.
        chat: Chat template, by which a prompt is a user's message; None: plain prompts.
        ends: End tokens of the model; None: those of its tokenizer.

    Attributes:
        end_token: End token of answers in training data: that of a turn with ``chat``, else that of a text.
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
        """Return the token ids of each prompt; raise if one is empty, or a conversation leaves no room for it."""
        if self._chat is not None:
            return [self._in_conversation(self._chat, sample) for sample in samples]
        for sample in samples:
            if sample.earlier or sample.system is not None:
                raise ConfigError(
                    f"sample {sample.id} is a conversation, which needs a chat template: set world.chat=true"
                )
        encoded = encode_prompts(samples, self.tokenizer, self.max_prompt_length, self._side, self._add_special_tokens)
        return TokenPrompt.unpad(*encoded)

    def _in_conversation(self, chat: Chat, sample: Sample) -> TokenPrompt:
        system = self._system if sample.system is None else sample.system
        try:
            ids = chat.conversation(system, sample.earlier, sample.prompt, self.max_prompt_length, self._side)
        except GroundlingError as error:
            raise ConfigError(f"{error}: raise world.max_prompt_length") from error
        return TokenPrompt(tuple(ids))

    def control_tokens(self, sample: Sample) -> set[str] | None:
        """Return a pool template's control tokens; None if the sample does not mark a dataset's parts."""
        if not sample.data:
            return None
        return self._encoder.spelled(self._encoder.mask_parts(sample.prompt, sample.data))

    def target(self, text: str, has_decoder: bool, allowed: Collection[str] | None = None) -> list[int]:
        """Return the token ids of a reference, without an end token unless a decoder's tokenizer adds it. Control
        tokens that are not ``allowed`` (None: all are) are read as plain text, with a warning.
        """
        if self._chat is not None and not has_decoder:
            return [*self._chat.lead, *self._chat.answers([text])[0]]
        if allowed is not None and (spelled := self._encoder.spelled(text).difference(allowed)):
            warnings.warn(
                f"references of the pool spell control tokens ({', '.join(sorted(spelled))}), which are learnt as "
                "plain text: leave them out; each reference is followed by the end token",
                stacklevel=2,
            )
            return self._encoder.encode(self._encoder.mask(text, allowed), special_tokens=has_decoder)
        return list(self.tokenizer(text_target=text, add_special_tokens=has_decoder)["input_ids"])


def make_prompt_encoder(config: WritingConfig, policy: TokenPolicy) -> PromptEncoder:
    lm, side = policy.lm, config.prompt_truncation_side
    chat = lm.chat if config.chat else None
    return PromptEncoder(
        lm.tokenizer, config.max_prompt_length, side, chat, config.system, lm.end_tokens, lm.add_special_tokens
    )
