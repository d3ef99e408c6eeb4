"""Post-processing of texts before they are measured."""

import re

from groundling.registry import Registry

SENTENCE_END = re.compile(r"(?<=[.!?؟۔।॥])\s+|(?<=[。！？])\s*(?=[^\s」』”’）])")
"""End of a sentence; in Chinese and Japanese no space follows it."""
_SUMMARY_SENTENCES = 3

post_processors: Registry[str] = Registry("post-processor")
"""Functions from the generated text to the text to measure."""


@post_processors.register("three_sentence_summary")
def three_sentence_summary(text: str) -> str:
    """Keep the first three sentences, one per line, as RL4LMs measures summaries of its supervised models."""
    return "\n".join(SENTENCE_END.split(text.strip())[:_SUMMARY_SENTENCES])
