"""Requests in the format of OpenAI's API, with some of vLLM's extensions; all sizes are bounded (untrusted input)."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, ValidationError, model_validator

from groundling.errors import ConfigError
from groundling.lm.write.sampling import Sampling

MAX_TEXTS = 64  # Maximum number of texts per request
_MAX_NEW_TOKENS = 4096
_Count = Annotated[int, Field(ge=1)]
_Top = Annotated[int, Field(ge=0, le=20)]
_Stop = Annotated[str, Field(min_length=1, max_length=256)]
_Choice = Annotated[str, Field(min_length=1, max_length=4096)]
_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
_LIMIT = AliasChoices("max_tokens", "max_completion_tokens")
_CHOICES = AliasChoices(AliasPath("structured_outputs", "choice"), "guided_choice")
# Ignored fields, and unsupported fields with the value for which they have no effect.
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier")
_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("stream", "echo", "ignore_eos", "include_stop_str_in_output"), False),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_tokens"), 0),
    "repetition_penalty": 1,
    "best_of": 1,
    "logit_bias": {},
    "tools": [],
    "response_format": {"type": "text"},
}

Source = str | list[int] | tuple[str | None, list[str]]
"""A prompt: a text, token ids, or a conversation as its system message and alternating user and assistant messages."""


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_supported(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        given = {name: value for name, value in fields.items() if value is not None and name not in _IGNORED}
        for name in given.keys() & _NEUTRAL.keys():
            if given.pop(name) != _NEUTRAL[name]:
                raise ValueError(f"{name}={fields[name]!r:.80} is not supported: remove it")
        return given


class _Part(_Object):
    type: Literal["text"]
    text: str


class _Message(_Object):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class CompletionRequest(_Object):
    """The body of a request to ``/v1/chat/completions`` (with ``messages``) or ``/v1/completions`` (``prompt``)."""

    model: str | None = None
    messages: Annotated[list[_Message], Field(min_length=1, max_length=4096)] | None = None
    prompt: str | _Ids | Annotated[list[str] | list[_Ids], Field(min_length=1, max_length=MAX_TEXTS)] | None = None
    n: _Count = 1
    max_tokens: _Count | None = Field(None, validation_alias=_LIMIT)
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] = []
    seed: int | None = None
    logprobs: bool | _Top = False
    top_logprobs: _Top = 0
    return_token_ids: bool = False
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1024)] = Field([], validation_alias=_CHOICES)

    @model_validator(mode="after")
    def _check_effects(self) -> "CompletionRequest":
        unused = {"stop", "top_p", "top_k"} if self.choices else set()
        if unused := self.model_fields_set & (unused | ({"top_logprobs"} if self.logprobs is not True else set())):
            raise ValueError(f"{min(unused)} has no effect in this request: remove it")
        if self.n * len(self.sources) > MAX_TEXTS:
            raise ValueError(f"n={self.n} requests more than {MAX_TEXTS} texts: use a smaller number")
        return self

    @property
    def sources(self) -> list[Source]:
        """The prompts; raises `ValueError` unless a conversation starts and ends with a user message."""
        if self.messages is None:
            prompts: Any = () if self.prompt is None else self.prompt  # "" is a valid prompt
            is_one = isinstance(prompts, str) or (prompts and isinstance(prompts[0], int))
            return [prompts] if is_one else list(prompts)
        roles, said = [one.role for one in self.messages], [one.text for one in self.messages]
        system = said.pop(0) if roles[0] in ("system", "developer") else None
        if roles[len(roles) - len(said) :] != ["user", *["assistant", "user"] * (len(said) // 2)]:
            raise ValueError("messages must be an optional system message, then user, assistant, user, ..., user")
        return [(system, said)]

    @property
    def max_new_tokens(self) -> int:
        return min(self.max_tokens or (16 if self.messages is None else _MAX_NEW_TOKENS), _MAX_NEW_TOKENS)

    @property
    def num_top(self) -> int | None:
        """Number of most likely tokens to return with each token; None if log-probabilities are not requested."""
        return self.top_logprobs if self.logprobs is True else None if self.logprobs is False else self.logprobs

    @cached_property
    def sampling(self) -> Sampling:
        if self.temperature == 0:
            return Sampling(do_sample=False)
        return Sampling(temperature=self.temperature, top_k=max(0, self.top_k), top_p=self.top_p)


def parse(body: bytes, is_chat: bool) -> CompletionRequest:
    """Parse a request's body; raise `GroundlingError` if it is invalid."""
    try:
        request = CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{place}: {message}" if place else message) from error
    if is_chat != (request.messages is not None) or is_chat == (request.prompt is not None):
        raise ConfigError("send messages to /v1/chat/completions, or a prompt to /v1/completions, but not both")
    return request
