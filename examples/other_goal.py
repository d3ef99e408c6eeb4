"""A function that proposes goals for the suite ``swapped``, for an env that does not propose them itself.

groundling evaluate runs/shelf-seed1 --import examples.shelf --suite controls \
    --other-goal examples/other_goal.py:visible_thing
"""

from collections.abc import Mapping
from typing import Any


def visible_thing(goal: str, observation: Any, info: Mapping[str, Any]) -> str:
    """Return the goal to take a different object, one on the first shelf if there is one."""
    visible = [action for action in info["actions"] if action.startswith("take") and action != goal]
    return visible[0] if visible else "take the white candle"
