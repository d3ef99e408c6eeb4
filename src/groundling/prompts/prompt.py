"""Prompts by id: how a text observation is told to whoever reads it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError, foreign
from groundling.prompts.balrog import balrog_conversation
from groundling.prompts.brief import brief_prompt, present_prompt
from groundling.prompts.conversation import Conversation, tell_episode
from groundling.prompts.forms import narrative_prompt, tagged_prompt
from groundling.prompts.glam import glam_prompt, tell
from groundling.registry import Registry

Prompt = Callable[[TextObservation, str], str | Conversation]
"""From an observation and a language to what is read to decide: a text, or a conversation, which a language model reads
by its chat template."""

prompts: Registry[str | Conversation] = Registry("prompt")
BLANK = TextObservation("nothing", (("nothing",),), (), ("nothing",), {})
"""An observation of nothing, by which it is seen what a prompt says."""


@prompts.register("glam")
def glam(observation: TextObservation, language: str) -> str:
    """GLAM's prompt: actions, goal, and the recent observations and actions."""
    o = observation
    return tell(o.goal, o.actions, o.descriptions, o.past_actions, language)


@prompts.register("glam-original")
def glam_original(observation: TextObservation, language: str) -> str:
    """The same, but in French with English missions put as GLAM's code puts them: "aller à …", whatever is to be done.

    For an env that speaks English under a prompt in French, as in the original: ``policy.args={prompt: glam-original,
    language: french}``.
    """
    o = observation
    return glam_prompt(o.goal, o.actions, o.descriptions, o.past_actions, language)


@prompts.register("brief")
def brief(observation: TextObservation, language: str) -> str:
    """Goal, recent observations and actions, without the list of admissible actions: half of GLAM's length."""
    o = observation
    return brief_prompt(o.goal, o.descriptions, o.past_actions, language)


@prompts.register("present")
def present(observation: TextObservation, language: str) -> str:
    """Goal, recent actions, and the present observation alone: for worlds with long observations."""
    o = observation
    return present_prompt(o.goal, o.descriptions[-1], o.past_actions, language)


@prompts.register("tagged")
def tagged(observation: TextObservation, language: str) -> str:
    """What GLAM's prompt says, between tags."""
    o = observation
    return tagged_prompt(o.goal, o.actions, o.descriptions, o.past_actions, language)


@prompts.register("narrative")
def narrative(observation: TextObservation, language: str) -> str:
    """What GLAM's prompt says, in sentences, the goal last."""
    o = observation
    return narrative_prompt(o.goal, o.actions, o.descriptions, o.past_actions, language)


@prompts.register("conversation")
def conversation(observation: TextObservation, language: str) -> Conversation:
    """The episode in turns: what is seen, the agent's answer, and so on; for world.history=null."""
    o = observation
    past = o.past_choices or (o.actions,) * len(o.past_actions)
    return tell_episode(o.goal, o.descriptions, o.past_actions, [*past, o.actions], language)


@prompts.register("balrog")
def balrog(observation: TextObservation, language: str) -> Conversation:
    """BALROG's form for chat models, in words of our own; for world.history=17, the present turn and 16 past ones."""
    o = observation
    return balrog_conversation(o.goal, o.descriptions, o.past_actions, o.actions, language)


def check_prompts(ids: Sequence[str], key: str, least: int) -> tuple[str, ...]:
    """The ids of prompts that a config gives under ``key``.

    Raises:
        ConfigError: no such prompt, one that is given twice, or fewer than ``least``; or some are texts, and others
            conversations.
        ForeignError: one raised.
    """
    if not all(isinstance(id, str) for id in ids) or len(set(ids)) < max(least, len(ids)):
        raise ConfigError(f"{key} must name {least} or more prompts, each once, got {list(ids)}")
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
    """What a policy reads: a prompt with some of its words replaced.

    Args:
        prompt: Id of a registered prompt; of several, each episode is told in one of them.
        language: Its language; the env must speak the same.
        replacements: Words and what stands for them, one after the other in the whole prompt, as the tests of GLAM's
            paper do it.
        system: The system prompt of a conversation, in the place of its own.

    Raises:
        ConfigError: no such prompt, or none, or one twice.
    """

    def __init__(
        self,
        prompt: str | Sequence[str],
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
    ) -> None:
        self._ids = check_prompts([prompt] if isinstance(prompt, str) else prompt, "policy.args.prompt", 1)
        for id in self._ids:
            prompts.get(id)
        self._language = language
        if not isinstance(replacements, Mapping | None):
            raise ConfigError(f"replacements must be a mapping, {{word: another}}, got {replacements!r}")
        self._replacements = dict(replacements or {})
        self._system = system

    def __call__(self, observation: TextObservation) -> str:
        """As a text, also if it is a conversation."""
        return str(self.read(observation))

    def read(self, observation: TextObservation, prompt: str | None = None) -> str | Conversation:
        """As a text, or as a conversation.

        Args:
            observation: What is told.
            prompt: Id of the prompt to tell it in; None: that of its episode.

        Raises:
            ConfigError: there is a system prompt for a text, which has none; or the prompt gives something else.
            ForeignError: the prompt raised.
        """
        # A hash, since an env may choose its task by the seed's remainder: each task would have one form.
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
        """As a text in each of the prompts."""
        return [str(self.read(observation, id)) for id in self._ids]

    def _replaced(self, text: str) -> str:
        for word, other in self._replacements.items():
            text = text.replace(word, other)
        return text
