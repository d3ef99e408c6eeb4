"""The figures of an update: numbers by name, from components that may be the user's."""

from collections.abc import Mapping
from typing import Any

from groundling.errors import RunError


def checked_figures(given: Any, giver: str) -> dict[str, float]:
    """Convert figures of an algorithm or a policy to plain numbers; scalars of torch and NumPy are accepted.

    Raises:
        RunError: they are not a mapping of texts to numbers.
    """
    if not isinstance(given, Mapping):
        raise RunError(
            f"the {giver} gives {given!r:.80} as the figures of an update, expected a mapping of names to numbers: "
            "return one such as {'loss': 0.5}, or {} if there is nothing to report"
        )
    figures = dict[str, float]()
    for name, value in given.items():
        if not isinstance(name, str):
            raise RunError(f"the {giver} gives a figure called {name!r:.80}, expected a text: give it a name")
        try:
            if isinstance(value, str | bytes | bytearray):  # which float would parse
                raise TypeError
            figures[name] = value if isinstance(value, int | float) else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            shown = " ".join(repr(value).split())
            raise RunError(
                f"the {giver} gives the figure {name} as {shown:.80}, expected a number: return one such as 0.5 (of "
                "several, their mean), or leave it out"
            ) from error
    return figures


def merge_figures(
    row: dict[str, Any], shaped: Mapping[str, Any], given: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Add figures to a run's row: those of the policy, of shaped returns, and of the algorithm, by component's name.

    Raises:
        RunError: a figure has the name of another.
    """
    present = row.keys() | shaped.keys()
    for giver, figures in given.items():
        if doubled := sorted(present & figures.keys()):
            raise RunError(
                f"the {giver} gives a figure called {doubled[0]}, which the run has already: give it another name"
            )
        present |= figures.keys()
    of_policy, of_algorithm = given.values()
    return {**row, **of_policy, **shaped, **of_algorithm}
