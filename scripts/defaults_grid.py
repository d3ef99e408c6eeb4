"""Train small third-party models with the default settings, and measure whether they learn.

    OMP_NUM_THREADS=1 python -m scripts.defaults_grid --output results/defaults --jobs 2

The grid consists of five models in folders, four algorithms, four worlds and two seeds, and of SmolLM2 with LoRA
adapters in two worlds with two algorithms. Each cell is trained through the Python API with the settings that
Groundling chooses, and compared with the untrained model on the same held-out episodes. A cell passes if the 95%
intervals are disjoint, or if the run itself reports why it cannot learn. Finished cells are kept in ``cells.jsonl``, so
an interrupted grid can be continued.
"""

import argparse
import difflib
import json
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Text
from scripts.cells import run_cells

MODELS = ("starter", "starter-causal", "llama", "gpt2", "t5")
ALGORITHMS = ("ppo", "grpo", "rloo", "a2c")
SEEDS = (1, 2)
COLOURS = ("red", "green", "blue", "yellow", "purple", "grey")


class Corridor(gymnasium.Env[str, int]):
    """An env without a goal; the agent walks to a treasure. Observations are strings, and actions have names."""

    observation_space, action_space = Text(200), Discrete(2)
    actions = ("go left", "go right")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.treasure, self.left = 4, int(self.np_random.choice([2, 6])), 4
        return self.seen(), {}

    def seen(self) -> str:
        side = "left" if self.treasure < self.place else "right"
        return f"You stand in a corridor. The treasure lies to your {side}."

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.place, self.left = self.place + (1 if action else -1), self.left - 1
        found = self.place == self.treasure
        return self.seen(), float(found), found, self.left == 0, {"success": found}


class Treasures(gymnasium.Env[str, int]):
    """An env in which only one of three things has value, and the admissible actions change at each step."""

    observation_space, action_space = Text(200), Discrete(3)
    valuable, worthless = ("gold", "ruby", "pearl", "silver"), ("stone", "leaf", "mud", "ash")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = self.found = 0
        return self.room()

    def room(self) -> tuple[str, dict[str, Any]]:
        one, other = (int(i) for i in self.np_random.choice(4, 2, replace=False))
        things = [self.valuable[int(self.np_random.integers(4))], self.worthless[one], self.worthless[other]]
        self.things = [things[i] for i in self.np_random.permutation(3)]
        return f"You enter room {self.turn + 1}.", {"actions": [f"take the {thing}" for thing in self.things]}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = self.things[action] in self.valuable
        self.turn, self.found = self.turn + 1, self.found + right
        seen, info = self.room()
        return seen, right / 4, self.turn == 4, False, info | {"success": self.found == 4}


class Echo(gymnasium.Env[str, str]):
    """An env in which the agent repeats the given colour; any text is an action."""

    observation_space, action_space = Text(200), Text(200)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.colour = COLOURS[int(self.np_random.integers(3))]
        return f"The box is {self.colour}. Say its colour:", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        said = action.strip().lower()
        return (
            "",
            difflib.SequenceMatcher(None, said, self.colour).ratio(),
            True,
            False,
            {"success": said == self.colour},
        )


WORLDS: dict[str, Any] = {"plain": Corridor, "changing": Treasures, "free text": Echo, "texts": None}
STEPS = {"plain": 6_000, "changing": 4_000, "free text": 2_000, "texts": 40_000}
SMOLLM2, SMOLLM2_STEPS = "smollm2", 2_000
SMOLLM2_CELLS = [*product([SMOLLM2], ("ppo", "grpo"), ("plain", "changing"), SEEDS)]
LENGTHS = {"free text": "policy.args.max_action_tokens=8", "texts": "world.num_tokens=16"}  # longest texts
CONSTANT = {"plain": 0.5, "changing": 1 / 3, "free text": 0.6}  # return of the best constant answer
VERBS = ("Describe", "Count", "Name", "Find", "Draw", "Sell")
THINGS = ("box", "ball", "key", "door", "cup", "hat", "pen", "coin")
PROMPTS = [f"{verb} the {colour} {thing}:" for verb, colour, thing in product(VERBS, COLOURS, THINGS)]


def vowels(completions: list[str], **columns: Any) -> list[float]:
    """Return the share of vowels among a completion's characters."""
    return [sum(letter in "aeiou" for letter in text.lower()) / max(1, len(text)) for text in completions]


def make_models(folder: Path) -> None:
    """Save the five models and their tokenizers; the three new ones share a byte-level BPE trained on these worlds."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        T5Config,
        T5ForConditionalGeneration,
    )

    from groundling import LanguageModel

    for name in ("starter", "starter-causal"):
        LanguageModel.from_pretrained(name).save_pretrained(folder / name)
    texts = [
        *PROMPTS,
        *Corridor.actions,
        *(f"take the {thing}" for thing in (*Treasures.valuable, *Treasures.worthless)),
    ]
    texts += [f"The box is {colour}. Say its colour: {colour}" for colour in COLOURS]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [*texts, Corridor.__doc__ or "", __doc__ or ""] * 3, 1000, special_tokens=["<pad>", "</s>"]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, pad_token="<pad>", eos_token="</s>")
    size, ends = len(tokenizer), {"eos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    models: dict[str, Any] = {
        "llama": LlamaForCausalLM(
            LlamaConfig(
                vocab_size=size, hidden_size=224, intermediate_size=448, num_hidden_layers=5, num_attention_heads=7,
                bos_token_id=1, **ends,
            )
        ),
        "gpt2": GPT2LMHeadModel(
            GPT2Config(vocab_size=size, n_embd=352, n_layer=6, n_head=8, n_positions=512, bos_token_id=1, **ends)
        ),
        "t5": T5ForConditionalGeneration(
            T5Config(
                vocab_size=size, d_model=224, d_kv=32, d_ff=448, num_layers=4, num_heads=7, decoder_start_token_id=0,
                **ends,
            )
        ),
    }  # fmt: skip
    for name, model in models.items():
        print(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def run_cell(folder: Path, model: str, algorithm: str, world: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Train and evaluate one cell in this process."""
    import groundling as gl
    from groundling.training import diagnosis

    is_large = model == SMOLLM2
    steps = steps or (SMOLLM2_STEPS if is_large else STEPS[world])
    common: dict[str, Any] = {"algorithm": algorithm, "seed": seed, "steps": steps}
    path = model if is_large else str(folder / model)
    adapters = ["model.lora={r: 16, target_modules: all-linear}"] if is_large else []
    run_dir, stopped = Path(tempfile.mkdtemp(prefix="defaults-grid-")) / "run", []
    metric = "reward/vowels" if WORLDS[world] is None else "return"
    try:
        if WORLDS[world] is None:
            run = gl.finetune(path, vowels, PROMPTS, run_dir=run_dir, overrides=[LENGTHS[world]], **common)
        else:
            overrides = adapters + ([LENGTHS[world]] if world in LENGTHS else [])
            run = gl.train(world=WORLDS[world], model=path, run_dir=run_dir, overrides=overrides, **common)
    except gl.RunError as error:  # the run stopped, because it no longer explored
        run, stopped = gl.Run(run_dir), [str(error).partition(":")[0]]
    trained = resource.getrusage(resource.RUSAGE_SELF)
    figures = run.evaluate(episodes=200).figures
    before, after = (figures[name] for name in ("zero-shot", "trained"))
    key = metric if metric in after else next(name for name in after if name.startswith(("reward", "return")))
    pair = {
        name: [one[key].value, one[key].low, one[key].high] for name, one in (("before", before), ("after", after))
    }
    found = stopped + [one.symptom for one in diagnosis.findings(diagnosis.examined(run.folder), run._config)]
    shutil.rmtree(run_dir.parent)
    return {
        "model": model,
        "algorithm": algorithm,
        "world": world,
        "seed": seed,
        "metric": key,
        **pair,
        "rises": pair["after"][1] > pair["before"][2],
        "reported": found,
        "cpu_seconds": round(trained.ru_utime + trained.ru_stime),
    }


def cells() -> Iterator[tuple[str, str, str, int]]:
    order = list(product(MODELS, ALGORITHMS, WORLDS, SEEDS))
    random.Random(0).shuffle(order)  # so that any part of the grid is a fair sample
    yield from [*order, *SMOLLM2_CELLS]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the README, which contains the values before and after training by model, algorithm and world."""
    rises, reported = (
        sum(row["rises"] for row in rows),
        sum(bool(row["reported"]) and not row["rises"] for row in rows),
    )
    risen = [row for row in rows if row["rises"] and row["world"] in CONSTANT]
    above, compared = sum(row["after"][1] > CONSTANT[row["world"]] for row in risen), len(risen)
    lines = [
        "# Default settings with third-party components",
        "",
        "`OMP_NUM_THREADS=1 python -m scripts.defaults_grid --output results/defaults --jobs 2`",
        "",
        f"{len(rows)} of {len(list(cells()))} cells were run. In {rises} ({rises / max(1, len(rows)):.0%}), the return or "
        f"reward increases, and the 95% intervals over 200 held-out episodes are disjoint; in {reported} others, the run "
        "reports why it does not learn. All settings are the defaults, except for the maximum length of texts, which is 8 "
        "tokens for actions and 16 for generated texts. The table shows values before → after training, one pair per seed. "
        "Bold values increase.",
        "",
        "An agent that always gives the same answer reaches .50 in the plain world (one direction), .33 where actions "
        f"change (one position in the list) and .60 with free text (red). In {above} of the {compared} cells that increase "
        "in these worlds, the whole interval is above this value. With texts, repeating a vowel has a reward of 1.",
        "",
        "| model | world | " + " | ".join(ALGORITHMS) + " |",
        "|---|---|" + "---|" * len(ALGORITHMS),
    ]
    for model, world in product((*MODELS, SMOLLM2), WORLDS):
        if not any((row["model"], row["world"]) == (model, world) for row in rows):
            continue
        line = [model, world]
        for algorithm in ALGORITHMS:
            shown = []
            for row in sorted(rows, key=lambda row: row["seed"]):
                if (row["model"], row["world"], row["algorithm"]) == (model, world, algorithm):
                    mark = "**" if row["rises"] else ""
                    note = " (reported)" if row["reported"] and not row["rises"] else ""
                    shown.append(f"{mark}{row['before'][0]:.2f} → {row['after'][0]:.2f}{mark}{note}")
            line.append("<br>".join(shown))
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/defaults"))
    parser.add_argument("--models", type=Path, default=Path("runs/defaults-models"), help="folder for the models")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cells", type=int, help="run only this many cells; by default all")
    parser.add_argument(
        "--cell", nargs=4, metavar=("MODEL", "ALGORITHM", "WORLD", "SEED"), help="run a single cell and print its row"
    )
    parser.add_argument("--steps", type=int, help="with --cell: number of steps or tokens")
    arguments = parser.parse_args()
    if not (arguments.models / "t5").exists():
        make_models(arguments.models)
    if arguments.cell:
        model, algorithm, world, seed = arguments.cell
        print(json.dumps(run_cell(arguments.models, model, algorithm, world, int(seed), arguments.steps)))
        return 0
    command = ["-m", "scripts.defaults_grid", "--models", str(arguments.models), "--cell"]
    names = ("model", "algorithm", "world", "seed")
    run_cells(command, list(cells())[: arguments.cells], names, arguments.output, table, arguments.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
