"""Evaluate a chat model behind an OpenAI-compatible server as an agent."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError, RunError
from groundling.fields import CommandLineOnly, Ge, Private, ReadByModel
from groundling.io.chat_server import ChatServer, RequestFailed, text_of
from groundling.policies import arguments
from groundling.policies.answer import action_instead, find_action
from groundling.policies.policy import Action, Evaluated, Policy, Turn, TurnTokens, policies
from groundling.prompts import Conversation, PromptReader


@policies.register("chat_server")
class ChatServerPolicy(Policy):
    """Requests the actions of all envs from a server. The policy has no weights, values or probabilities.

    A reply is parsed like an unguided answer of `ActionGeneratingPolicy`; text up to ``thought_ends`` is ignored.

    Args:
        base_url: The server's URL, up to and including ``/v1``.
        model: Name of the model on the server.
        prompt, language, replacements, system: See `PromptPolicy`. A plain-text prompt is sent as one message.
        temperature: Sampling temperature; 0 is used for deterministic actions.
        max_tokens: Maximum number of tokens in a reply.
        guided: Send the admissible actions as ``structured_outputs.choice``, so that every reply is one of them, as in
            ``action_writing``; vLLM and `groundling serve` support this.
        invalid_action: Replaces invalid replies. If None or not admissible, the first admissible action is used.
        thought_ends: String that ends a thought, if the prompt asks for one. If None, the whole reply is the action.
        concurrency: Maximum number of concurrent requests.
        api_key_env: See `groundling.io.chat_server.ChatServer`.
        timeout: Timeout of a request, in seconds.
    """

    needs = frozenset({"words"})
    trainable = False
    writes_text = True

    def __init__(
        self,
        base_url: Annotated[str, CommandLineOnly, Private],
        model: str,
        prompt: str | Sequence[str] = "conversation",
        language: arguments.Language = "english",
        replacements: arguments.Replacements = None,
        system: arguments.SystemPrompt = None,
        temperature: Annotated[float, Ge(0)] = 1.0,
        max_tokens: Annotated[int, Ge(1)] = 4096,
        guided: bool = False,
        invalid_action: Annotated[str | None, ReadByModel] = None,
        thought_ends: Annotated[str | None, ReadByModel] = None,
        concurrency: Annotated[int, Ge(1)] = 16,
        api_key_env: Annotated[str, CommandLineOnly, Private] = "OPENAI_API_KEY",
        timeout: float = 120.0,
    ) -> None:
        super().__init__()
        self._server = ChatServer(base_url, api_key_env, timeout)
        self._body = {"model": model, "max_tokens": max_tokens}
        self._temperature, self._guided = temperature, guided
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
        """Query the server, whose sampling ignores ``generator``. Raises `RunError` if the server fails."""
        try:
            replies = asyncio.run(self._replies(observations, 0.0 if deterministic else self._temperature))
        except RequestFailed as error:
            raise RunError(f"{self._server.base_url}: {error}") from error
        turns, actions, invalid = list[Turn](), list[int](), list[bool]()
        for observation, reply in zip(observations, replies, strict=True):
            answer = reply if self._thought_ends is None else reply.partition(self._thought_ends)[2]
            if not observation.actions:  # any text is an action
                turns.append(Turn(observation, (), (), reply, answer.strip()))
                actions.append(0)
                invalid.append(False)
                continue
            action = find_action(answer.strip().partition("\n")[0], observation.actions)
            turns.append(Turn(observation, (), (), reply))
            actions.append(action_instead(self._invalid_action, observation.actions) if action is None else action)
            invalid.append(action is None)
        nothing = torch.zeros(len(actions))
        tokens = TurnTokens.of(turns, [()] * len(turns), [()] * len(turns), invalid)
        return Action(torch.tensor(actions), nothing, nothing, turns=turns, tokens=tokens)

    async def _replies(self, observations: Sequence[TextObservation], temperature: float) -> list[str]:
        gate = asyncio.Semaphore(self._concurrency)

        async def ask(observation: TextObservation) -> str:
            prompt = self._reader.read(observation)
            messages = prompt.messages() if isinstance(prompt, Conversation) else [{"role": "user", "content": prompt}]
            async with gate:
                body = {**self._body, "messages": messages, "temperature": temperature}
                if self._guided and observation.actions:
                    body["structured_outputs"] = {"choice": list(observation.actions)}
                text = self._server.scrub(text_of(await self._server.complete(body)) or "")
                return text.encode("utf-8", "replace").decode()  # JSON can contain lone surrogates

        async with self._server:
            return await asyncio.gather(*map(ask, observations))

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluated:
        """Raise `ConfigError`: a server provides no action probabilities."""
        raise ConfigError("a chat server provides no action probabilities: it can be evaluated, but not trained")

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        return torch.zeros(len(observations))

    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return [self._reader(observation) for observation in observations]
