"""What may be done to a text before it is measured."""

import re

from groundling.registry import Registry

SENTENCE_END = re.compile(r"(?<=[.!?؟۔।॥])\s+|(?<=[。！？])\s*(?=[^\s」』”’）])")
"""End of a sentence; in Chinese and Japanese no space follows it."""
_SUMMARY_SENTENCES = 3

post_processors: Registry[str] = Registry("post-processor")
"""Functions from the text written to the text measured."""


@post_processors.register("three_sentence_summary")
def three_sentence_summary(text: str) -> str:
    """The first three sentences, a line each: how RL4LMs measures summaries of its supervised models."""
    return "\n".join(SENTENCE_END.split(text.strip())[:_SUMMARY_SENTENCES])
