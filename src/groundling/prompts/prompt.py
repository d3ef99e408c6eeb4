"""Prompts by id: how a text observation is told to whoever reads it."""

from collections.abc import Callable, Mapping

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.prompts.brief import brief_prompt, present_prompt
from groundling.prompts.glam import glam_prompt, tell
from groundling.registry import Registry

Prompt = Callable[[TextObservation, str], str]
"""From an observation and a language to the text that is read to decide."""

prompts: Registry[str] = Registry("prompt")


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


class PromptReader:
    """What a policy reads: a prompt with some of its words replaced.

    Args:
        prompt: Id of a registered prompt.
        language: Its language; the env must speak the same.
        replacements: Words and what stands for them, one after the other in the whole prompt, as the tests of GLAM's
            paper do it.
    """

    def __init__(
        self, prompt: str, language: str = "english", replacements: Mapping[str, str] | None = None
    ) -> None:
        self._prompt: Prompt = prompts.get(prompt)
        self._language = language
        if not isinstance(replacements, Mapping | None):
            raise ConfigError(f"replacements must be a mapping, {{word: another}}, got {replacements!r}")
        self._replacements = dict(replacements or {})

    def __call__(self, observation: TextObservation) -> str:
        text = self._prompt(observation, self._language)
        for word, other in self._replacements.items():
            text = text.replace(word, other)
        return text
