"""Prompts from a policy's observations: the form of each episode, replaced words, the system prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError, foreign
from groundling.prompts.prompt import Conversation, prompts

BLANK = TextObservation("nothing", (("nothing",),), (), ("nothing",), {})  # To see a prompt's fixed words


def check_prompts(ids: Sequence[str], key: str, least: int) -> tuple[str, ...]:
    """Check the prompt ids of config key ``key``: known, distinct, at least ``least``, texts or conversations only."""
    if not all(isinstance(id, str) for id in ids) or len(set(ids)) < max(least, len(ids)):
        raise ConfigError(f"{key} must name {least} or more prompts, each once, got {list(ids)}")
    for id in ids:
        prompts.get(id)
    blanks = {}
    for id in ids if len(ids) > 1 else ():
        with foreign(f"prompt {id!r}"):
            blanks[id] = prompts.get(id)(BLANK, "english")
    conversations = [id for id, one in blanks.items() if isinstance(one, Conversation)]
    if 0 < len(conversations) < len(blanks):
        raise ConfigError(
            f"{key}={list(ids)} has texts and conversations ({', '.join(conversations)}): name prompts of one kind"
        )
    return tuple(ids)


class PromptReader:
    """Turns observations into prompts.

    Args:
        prompt: Id of a registered prompt. With several ids, each episode uses one of them.
        language: Language of the prompt; the env must use the same.
        replacements: Words and their replacements, applied in order to the whole prompt, as in GLAM's tests.
        system: Replaces the system prompt of a conversation.
    """

    def __init__(
        self,
        prompt: str | Sequence[str],
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
    ) -> None:
        self._ids = check_prompts([prompt] if isinstance(prompt, str) else prompt, "policy.args.prompt", 1)
        self._language = language
        if not isinstance(replacements, Mapping | None):
            raise ConfigError(f"replacements must be a mapping, {{word: another}}, got {replacements!r}")
        self._replacements = dict(replacements or {})
        self._system = system

    def __call__(self, observation: TextObservation) -> str:
        return str(self.read(observation))

    def read(self, observation: TextObservation, prompt: str | None = None) -> str | Conversation:
        """Return the prompt of an observation in the form ``prompt``; None: in that of its episode."""
        # Hashed, because an env may choose its task by the seed's remainder: each task would get one form.
        id = prompt or self._ids[crc32(b"%d" % observation.episode) % len(self._ids)]
        with foreign(f"prompt {id!r}"):
            reading = prompts.get(id)(observation, self._language)
        if isinstance(reading, Conversation):
            if self._system is not None:
                reading = replace(reading, system=self._system)
            return reading.changed(self._replaced) if self._replacements else reading
        if not isinstance(reading, str):
            raise ConfigError(f"prompt {id!r} must give a text or a Conversation, got {reading!r:.80}")
        if self._system is not None:
            raise ConfigError(
                f"policy.args.system is for conversations, and the prompt {id!r} is a text: set "
                "policy.args.prompt=conversation, or leave it out"
            )
        return self._replaced(reading)

    def forms(self, observation: TextObservation) -> list[str]:
        """Return the observation in each of the prompts, as texts."""
        return [str(self.read(observation, id)) for id in self._ids]

    def _replaced(self, text: str) -> str:
        for word, other in self._replacements.items():
            text = text.replace(word, other)
        return text
