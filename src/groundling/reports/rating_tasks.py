"""What people are asked about texts: the wording of rating forms, task by task."""

from dataclasses import dataclass

from groundling.errors import ConfigError
from groundling.registry import unknown


@dataclass(frozen=True)
class RatingQuestion:
    """One question about a text, answered from 1 to `LIKERT_POINTS`."""

    id: str
    text: str
    """For a single text."""
    comparison: str
    """For two texts side by side."""
    low: str
    """What 1 means."""
    high: str
    """What the highest answer means."""


@dataclass(frozen=True)
class RatingTask:
    """The words of a form."""

    title: str
    instructions: str
    prompt_label: str
    text_label: str
    questions: tuple[RatingQuestion, ...]


LIKERT_POINTS = 5

_FLUENCY = RatingQuestion(
    "fluency",
    "Is it written in good, natural language?",
    "Which one is written in better, more natural language?",
    "hard to read",
    "as a careful writer would put it",
)
_FAITHFULNESS = RatingQuestion(
    "faithfulness",
    "Is everything it says supported by what is given?",
    "Which one is better supported by what is given?",
    "mostly made up",
    "all of it is supported",
)

RATING_TASKS = {
    "general": RatingTask(
        "Rating of texts",
        "Read what was given and the text that was written for it. Judge the text by itself; there is no right answer "
        "that you have to find.",
        "Given",
        "Text",
        (
            RatingQuestion(
                "quality",
                "How good is this text for what was given?",
                "Which text is better for what was given?",
                "useless",
                "could not be better",
            ),
            _FLUENCY,
        ),
    ),
    "imdb": RatingTask(
        "Continued film reviews",
        "You see the beginning of a film review and how it was continued. The continuation may stop in the middle of a "
        "sentence: that is not a fault.",
        "Beginning of the review",
        "Continuation",
        (
            RatingQuestion(
                "sentiment",
                "How much does the review as a whole like the film?",
                "With which continuation does the review like the film more?",
                "hates it",
                "loves it",
            ),
            RatingQuestion(
                "coherence",
                "Does the continuation carry on what the beginning says?",
                "Which continuation carries on better what the beginning says?",
                "has nothing to do with it",
                "as if by the same writer",
            ),
            _FLUENCY,
        ),
    ),
    "commongen": RatingTask(
        "Sentences from concepts",
        "You see a few concepts and a sentence that should use all of them, in any form and order, to tell an everyday "
        "scene.",
        "Concepts",
        "Sentence",
        (
            RatingQuestion(
                "common_sense",
                "Could what the sentence tells happen in everyday life?",
                "Which sentence tells what is more likely to happen in everyday life?",
                "impossible",
                "quite ordinary",
            ),
            RatingQuestion(
                "coverage",
                "Does the sentence use all of the concepts?",
                "Which sentence uses the concepts better?",
                "none of them",
                "all of them",
            ),
            _FLUENCY,
        ),
    ),
    "dialog": RatingTask(
        "Answers in a conversation",
        "You see the last turns of a conversation, which <EOU> separates, and what is said next.",
        "Conversation so far",
        "Next turn",
        (
            RatingQuestion(
                "appropriateness",
                "Does the next turn fit the conversation?",
                "Which turn fits the conversation better?",
                "not at all",
                "just what one would say",
            ),
            _FLUENCY,
        ),
    ),
    "summarization": RatingTask(
        "Summaries of news",
        "You see a news article and a summary. A good summary has what matters most, and nothing that the article does "
        "not say.",
        "Article",
        "Summary",
        (
            RatingQuestion(
                "relevance",
                "Does the summary have what matters most in the article?",
                "Which summary has more of what matters in the article?",
                "misses all of it",
                "has all of it",
            ),
            _FAITHFULNESS,
            _FLUENCY,
        ),
    ),
    "totto": RatingTask(
        "Sentences from tables",
        "You see the chosen cells of a table, marked by <cell>, with the headers of their columns and rows, and the "
        "titles of page and section. The sentence should tell these cells.",
        "Table",
        "Sentence",
        (
            _FAITHFULNESS,
            RatingQuestion(
                "coverage",
                "Does the sentence tell all chosen cells?",
                "Which sentence tells more of the chosen cells?",
                "none of them",
                "all of them",
            ),
            _FLUENCY,
        ),
    ),
}
"""By id; ``general`` is for any other task."""


def find_rating_task(id: str) -> RatingTask:
    """The wording of a task; `ConfigError` if there is none."""
    if id not in RATING_TASKS:
        raise ConfigError(unknown("rating task", id, RATING_TASKS))
    return RATING_TASKS[id]
