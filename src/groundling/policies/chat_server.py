"""A chat model behind an OpenAI-compatible server acts: to be evaluated beside those that are trained here."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError, RunError
from groundling.io.chat_server import ChatServer, RequestFailed, text_of
from groundling.policies.answer import action_instead, find_action
from groundling.policies.policy import Action, Evaluation, Policy, policies
from groundling.policies.turns import Turn, TurnTokens
from groundling.prompts import Conversation, PromptReader


@policies.register("chat_server")
class ChatServerPolicy(Policy):
    """Asks a server what to do, all envs of a step at once. It has no weights, values or probabilities.

    Its answer is read as the free one of `ActionGeneratingPolicy`, but for what stands before ``thought_ends``.

    Args:
        base_url: Of the server, up to and with ``/v1``.
        model: What the server calls it.
        prompt, language, replacements, system: See `ReadingPolicy`; a prompt that is a text is one message.
        temperature: Of sampling; 0 where the likeliest action is asked for.
        max_tokens: Of a reply.
        invalid_action: What is done where a reply names no admissible action; None, or where it cannot be done: the
            first that can be.
        thought_ends: What a thought ends with, where the model is told to think first; None: a reply is an action.
        concurrency: Requests at once.
        api_key_env: See `groundling.io.chat_server.ChatServer`.
        timeout: Seconds for a request.

    Raises:
        ConfigError: a value that cannot be.
    """

    needs = frozenset({"words"})
    trainable = False

    def __init__(
        self,
        base_url: str,
        model: str,
        prompt: str | Sequence[str] = "conversation",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 4096,
        invalid_action: str | None = None,
        thought_ends: str | None = None,
        concurrency: int = 16,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 120.0,
    ) -> None:
        super().__init__()
        if temperature < 0 or max_tokens < 1 or concurrency < 1:
            raise ConfigError(
                "policy.args.temperature must be at least 0, max_tokens and concurrency at least 1; got "
                f"{temperature}, {max_tokens} and {concurrency}"
            )
        self._server = ChatServer(base_url, api_key_env, timeout)
        self._model, self._temperature, self._max_tokens = model, temperature, max_tokens
        self._invalid_action, self._thought_ends = invalid_action, thought_ends
        self._concurrency = concurrency
        self._reader = PromptReader(prompt, language, replacements, system)

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        """As the server answers; its sampling cannot be repeated by ``generator``.

        Raises:
            RunError: it does not.
        """
        temperature = 0.0 if deterministic else self._temperature
        try:
            replies = asyncio.run(self._replies(observations, temperature))
        except RequestFailed as error:
            raise RunError(f"{self._server.base_url}: {error}") from error
        named = [
            find_action(self._action_text(reply), o.actions)
            for reply, o in zip(replies, observations, strict=True)
        ]
        actions = [
            action_instead(self._invalid_action, o.actions) if action is None else action
            for action, o in zip(named, observations, strict=True)
        ]
        tokens = TurnTokens.none(len(replies))
        tokens.invalid = torch.tensor([action is None for action in named])
        nothing = torch.zeros(len(actions))
        turns = [Turn(o, (), (), reply) for o, reply in zip(observations, replies, strict=True)]
        return Action(torch.tensor(actions), nothing, nothing, turns=turns, tokens=tokens)

    async def _replies(self, observations: Sequence[TextObservation], temperature: float) -> list[str]:
        gate = asyncio.Semaphore(self._concurrency)

        async def ask(observation: TextObservation) -> str:
            body = {
                "model": self._model,
                "messages": self._messages(observation),
                "temperature": temperature,
                "max_tokens": self._max_tokens,
            }
            async with gate:
                text = self._server.scrub(text_of(await self._server.complete(body)) or "")
                return text.encode("utf-8", "replace").decode()  # JSON can hold half a character

        async with self._server:
            return await asyncio.gather(*map(ask, observations))

    def _messages(self, observation: TextObservation) -> list[dict[str, str]]:
        reading = self._reader.read(observation)
        return (
            reading.messages()
            if isinstance(reading, Conversation)
            else [{"role": "user", "content": reading}]
        )

    def _action_text(self, reply: str) -> str:
        if self._thought_ends is not None:
            reply = reply.partition(self._thought_ends)[2]
        return reply.strip().partition("\n")[0]

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluation:
        """Nothing is known of a server's probabilities.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a chat server gives no probabilities of actions: it can be evaluated, not trained")

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        return torch.zeros(len(observations))

    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return [self._reader(observation) for observation in observations]

    def save_pretrained(self, folder: Path) -> None:
        """Nothing to write."""

    def load_weights(self, folder: Path) -> None:
        """Nothing to read."""
