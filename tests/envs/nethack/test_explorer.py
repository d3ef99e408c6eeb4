import numpy as np
import pytest

from groundling.envs.nethack import ACTIONS, make_task
from groundling.envs.nethack.explorer import Explorer


def _observation(
    rows: list[str], message: str = "", brown: str = "", hunger: int = 1, hero: tuple[int, int] | None = None
) -> dict[str, np.ndarray]:
    """Return a screen with a map whose first row is the terminal's row 5; the characters in ``brown`` are brown."""
    chars = np.full((24, 80), ord(" "), dtype=np.uint8)
    colours = np.full((24, 80), 7, dtype=np.int8)
    for i, row in enumerate(rows):
        chars[5 + i, 10 : 10 + len(row)] = list(row.encode())
    colours[np.isin(chars, list(brown.encode()))] = 3
    if hero is None:
        position = np.argwhere(chars == ord("@"))[0]
        hero = int(position[0]), int(position[1])
    blstats = np.zeros(27, dtype=np.int64)
    blstats[:2], blstats[21], blstats[24] = (hero[1], hero[0] - 1), hunger, 1
    text = np.frombuffer(message.encode().ljust(256, b"\0"), dtype=np.uint8)
    return {"tty_chars": chars, "tty_colors": colours, "blstats": blstats, "message": text}


def _acts(*observations: dict[str, np.ndarray]) -> list[str]:
    explorer = Explorer()
    return [ACTIONS[explorer.act(observation)] for observation in observations]


def test_it_walks_to_the_stairs_and_down() -> None:
    assert _acts(_observation(["------", "|@..>|", "------"])) == ["east"]
    assert _acts(_observation(["-----", "|>..|", "|..@|", "-----"]))[0] in ("west", "northwest")
    around = ["-----", "|@|>|", "|.|.|", "|...|", "-----"]
    assert _acts(_observation(around)) == ["south"]
    shown = _observation(["------", "|.@>.|", "------"])
    on_stairs = _observation(["------", "|..@.|", "------"])  # the hero hides the stairs
    assert _acts(shown, on_stairs) == ["east", "down"]


def test_it_goes_to_the_unknown_first() -> None:
    assert _acts(_observation(["-----", "|...|", "|@..###", "-----"])) == ["east"]
    assert _acts(_observation(["#######@"])) == ["west"]


def test_doors_are_never_passed_diagonally() -> None:
    rows = ["-----", "|..@|", "|...+", "-----"]  # brown means a door, which must be entered from the west
    assert _acts(_observation(rows, brown="+")) == ["south"]
    open_floor = ["-----", "|..@|", "|....", "-----"]
    assert _acts(_observation(open_floor)) == ["southeast"]


def test_a_locked_door_is_kicked_in() -> None:
    rows = ["----", "|.@+", "----"]
    acts = _acts(
        _observation(rows, brown="+"),
        _observation(rows, "This door is locked.", brown="+"),
        _observation(rows, "In what direction?", brown="+"),
        _observation(rows, "WHAMM!!!", brown="+"),
    )
    assert acts == ["east", "kick", "east", "kick"]


def test_blocked_ways_are_abandoned() -> None:
    rows = ["-----", "|.@`#", "-----"]  # a boulder that does not move
    acts = _acts(*[_observation(rows)] * 5)
    assert acts[:3] == ["east"] * 3 and "east" not in acts[3:]


@pytest.mark.parametrize(
    "message, action",
    [
        ("What do you want to eat? [de or ?*]", "northwest"),  # y, which the task replaces by the first choice
        ("There is a newt corpse here; eat it? [ynq] (n)", "southeast"),  # n
        ("Really attack the peaceful gnome?", "southeast"),
        ("In what direction?", "more"),  # the explorer does not know this question
    ],
)
def test_questions_are_answered(message: str, action: str) -> None:
    assert _acts(_observation(["---", "|@|", "---"], message)) == [action]


def test_it_eats_when_hungry_but_not_all_the_time() -> None:
    hungry = _observation(["-----", "|@.#", "-----"], hunger=2)
    assert _acts(hungry, hungry)[0] == "eat"
    assert "eat" not in _acts(hungry, hungry)[1:]


def test_equal_seeds_make_equal_choices() -> None:
    games = []
    for _ in range(2):
        env, explorer = make_task("NetHackScore-v1"), Explorer(3)
        observation, _ = env.reset(seed=2)
        actions = []
        for _ in range(120):
            actions.append(explorer.act(observation))
            observation, *_ = env.step(actions[-1])
        games.append(actions)
    assert games[0] == games[1]
