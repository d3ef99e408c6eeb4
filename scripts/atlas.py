"""Atlas of the worlds, agents and rewards for which results are committed.

python -m scripts.atlas     # write docs/atlas.md
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from scripts.atlas_rows import ROOT, Row, rows

PAGE = ROOT / "docs" / "atlas.md"
_KINDS = {  # families of worlds: heading, and section of combinations.md with the valid policies
    "BabyAI": ("BabyAI-Text", "text"),
    "text": ("Other text worlds", "text, changing actions"),  # this section applies to all worlds without symbols
    "free text": ("Free text", "text, changing actions"),
    "NetHack": ("NetHack", "NetHack"),
    "writing": ("Writing", "writing"),
}
_CHOOSES = """The policy chooses from a list of actions, but [any text is an action](free_text.md), unless
  `world.actions` lists the texts."""
_UNTRIED = {"`NetHackWords-Score-v1`": "listed", "`openenv:URL`": "depend on the server"}
"""Other worlds that are shown even if no results are committed, each with its kind of actions."""
_BASELINES = ("chat_server", "random")  # policies without weights to train
_NOT_RUN = "–"
_HEAD = """# Atlas

`python -m scripts.atlas` writes this page from the files in `results/` and `benchmarks/results/`; a test keeps it up to
date. It lists the trained agents whose results are committed: {rows} rows in {worlds} worlds, with {agents} different
combinations of world, policy, model, algorithm and reward. [combinations.md](combinations.md) lists all valid ones.

- The figure is for held-out episodes or prompts, except in [rl4lms](../results/rl4lms/README.md), where it is the mean
  reward of the last texts in training, and the baseline is that of the first. Values are interquartile means over seeds
  (means for fewer than four seeds, and always in NetHack), with 95% bootstrap intervals. With one seed, the interval is
  over episodes. Intervals over few seeds tend to be too narrow.
- The baseline is the untrained model if it was evaluated, otherwise random actions.
- Steps are env steps, transitions (cloning), frames (NetHack) or tokens (writing) of one run.
- Hours are for one run (the median over seeds), in CPU time if it was recorded, otherwise in wall-clock time, on various
  machines, some with a GPU, that also ran other jobs.
- Rows are comparable only if they belong to the same study. The studies state the limits of their results.
- Not included: the learning rates tried in [glam-tuning](../results/glam-tuning/README.md), and runs that measure speed,
  faults or memory.
"""


def page(found: Sequence[Row]) -> str:
    """Return the text of docs/atlas.md."""
    worlds = {one.world: one for one in found}
    names = ("world", "policy", "model", "algorithm", "reward")
    distinct = {tuple(getattr(one, name) for name in names) for one in found}
    lines = [_HEAD.format(rows=len(found), worlds=len(worlds), agents=len(distinct))]
    for kind, (heading, _) in _KINDS.items():
        lines += [f"## {heading}", ""]
        for world in worlds:
            if worlds[world].kind == kind:
                head = ("agent", "algorithm", "reward", "figure", "baseline", "seeds", "steps", "hours", "study")
                cells = [_cells(one) for one in found if one.world == world]
                lines += [f"### {world}", "", *_table(head, cells), ""]
    lines += [*_matrices(found), "## Commands", "", *_table(("study", "command"), _commands(found)), ""]
    return "\n".join(lines)


def _cells(one: Row) -> list[str]:
    agent = f"`{one.policy}`" + (f", {one.model}" if one.model else "")
    study = f"{_link(one.folder)}{': ' if one.arm else ''}{one.arm}"
    values = (one.figure, one.baseline, str(one.seeds), f"{one.steps:,}", one.hours)
    return [agent, f"`{one.algorithm}`", one.reward, *(value.replace("; ", ";<br>") for value in values), study]


def _link(folder: Path) -> str:
    """Return a link to a folder's README, or else to the page on benchmarks."""
    readme = folder / "README.md"
    if (ROOT / readme).exists():
        return f"[{folder.relative_to('results')}](../{readme})"
    return f"[{folder}](benchmarks.md)"


def _commands(found: Iterable[Row]) -> list[list[str]]:
    commands = dict.fromkeys((_link(one.folder), one.command) for one in found)
    return [[link, f"`{command}`".replace("|", "\\|")] for link, command in commands]


def _matrices(found: Sequence[Row]) -> list[str]:
    """Return worlds by policies and worlds by rewards; empty cells say why."""
    text = (ROOT / "docs" / "combinations.md").read_text(encoding="utf-8")
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    valid = {
        name: {cells[0].strip("`"): cells[1:] for cells in map(_split, body.splitlines()) if len(cells) > 1}
        for name, body in re.findall(r"^## (?:Learning: )?(.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    ppo = valid["text"][""].index("`ppo`")
    kinds = {_name(one.world): one.kind for one in found}
    for engine, actions in {**_engines(), **_UNTRIED}.items():
        name = engine.strip("`").removesuffix("-v0")
        if not any(re.search(rf"{name}(?!\w)", world.replace(" ", "")) for world in kinds):
            kinds[engine] = "free text" if actions.startswith("any text") else "text"
    worlds = {world: _KINDS[kind][1] for kind in _KINDS for world, one in kinds.items() if one == kind}
    used: dict[str, str] = {}

    def refused(number: str) -> str:
        used[number] = reasons.get(number, _CHOOSES)
        return number

    def of_policy(world: str, policy: str) -> str:
        cells = valid[worlds[world]][policy]
        if "✓" not in cells:
            return refused(cells[ppo])
        return refused("a") if kinds[world] == "free text" and policy != "action_generating" else _NOT_RUN

    def of_reward(world: str, reward: str) -> str:
        cell = valid["Rewards"][reward][valid["Rewards"][""].index(worlds[world])]
        return _NOT_RUN if cell == "✓" else refused(cell)

    policies = [name for name in valid["text"] if name.strip("-:|") and name not in _BASELINES]
    rewards = [name for name in valid["Rewards"] if name.strip("-:|")]
    agents = _matrix(found, worlds, policies, lambda one: one.policy, of_policy)
    paid = _matrix(found, worlds, rewards, lambda one: one.reward.partition(":")[0], of_reward)
    legend = [
        f"- {number}: {why}"
        for number, why in sorted(used.items(), key=lambda item: (item[0].isalpha(), item[0].zfill(3)))
    ]
    return [
        *(
            "## Worlds by agents",
            "",
            "Each cell lists the algorithms, for all arguments of the world. –: valid, but not run or",
        ),
        "not committed. Numbers and letters: invalid; see [reasons](#reasons).",
        *("", *_table(["", *(f"`{name}`" for name in policies)], agents), "", "## Worlds by rewards", ""),
        *(
            "Cloning and learning from pairs do not use a reward.",
            "",
            *_table(["", *rewards], paid),
            "",
            "## Reasons",
            "",
        ),
        "Numbers refer to [combinations.md](combinations.md#reasons), where a single world represents each family:",
        *("`test/Doors-v0` represents text worlds without symbols.", "", *legend, ""),
    ]


def _engines() -> dict[str, str]:
    """Return the ids of third-party engines, each with its kind of actions, from the table in docs/engines.md."""
    table = map(_split, (ROOT / "docs" / "engines.md").read_text(encoding="utf-8").splitlines())
    return {cells[0]: cells[3] for cells in table if len(cells) == 5 and cells[0].startswith("`")}


def _name(world: str) -> str:
    """Return a world's name without its arguments."""
    return world.partition(", ")[0]


def _matrix(
    found: Sequence[Row],
    worlds: Iterable[str],
    columns: Sequence[str],
    column: Callable[[Row], str],
    why: Callable[[str, str], str],
) -> list[list[str]]:
    table = []
    for world in worlds:
        run = {
            name: [one.algorithm for one in found if (_name(one.world), column(one)) == (world, name)]
            for name in columns
        }
        table.append([world, *(", ".join(sorted({*run[name]})) or why(world, name) for name in columns)])
    return table


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)]


if __name__ == "__main__":
    PAGE.write_text(page(rows()), encoding="utf-8")
