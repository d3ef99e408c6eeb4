"""Measure the speed and accuracy of a frozen model (reference, judge) in bfloat16 and int8 on this processor.

    python benchmarks/frozen.py MODEL           # a folder; takes some minutes
    python benchmarks/frozen.py MODEL --quick   # smoke test: two texts, one round

`reads` computes log-probabilities of 16 texts of 128 tokens, like a reference model. `writes` decodes 32 tokens
greedily for each of 16 prompts of 64 tokens, like a judge. Values are medians of the CPU seconds of one thread, with
interleaved variants. `kl` is the divergence of the next-token distribution from float32's, in nats, by mean and maximum.

float32   the default
bfloat16  `model.dtype`, or a judge's `dtype`
int8      linear layers, activations by tensor (`torch.ao.quantization.quantize_dynamic`); only for scoring, because its
          result for a token depends on the other tokens of the pass, so `LanguageModel` refuses to generate with it
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine
from torch import Tensor, nn

from groundling.lm import LanguageModel
from groundling.policies.text_states import Sequences, read_states
from groundling.runtime import devices

RESULTS = Path(__file__).parent / "results"
TEXT = Path(__file__).parent.parent / "docs"
"""A folder with English text on which the models were not trained."""
TOKENS, PROMPT, NEW_TOKENS = 128, 64, 32


def load(model: str, variant: str) -> LanguageModel:
    lm = LanguageModel.from_pretrained(model, dtype="bfloat16" if variant == "bfloat16" else "float32")
    if variant == "int8":
        for module in lm.model.modules():
            if isinstance(module, nn.Linear):
                module.__class__ = nn.Linear  # which the quantiser expects
        torch.ao.quantization.quantize_dynamic(lm.model, {nn.Linear}, dtype=torch.qint8, inplace=True)
    return lm


def make_texts(lm: LanguageModel, count: int) -> list[list[int]]:
    words = "\n".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.glob("*.md")))
    ids = lm.tokenizer(words, truncation=False)["input_ids"]
    step = len(ids) // count
    return [ids[first : first + TOKENS] for first in range(0, step * count, step)]


@torch.no_grad()
def log_probs(lm: LanguageModel, texts: list[list[int]]) -> Tensor:
    """Return log-probabilities, float32 (tokens except for each text's first, vocabulary)."""
    lines = Sequences([text[:1] for text in texts], [text[1:-1] for text in texts], [TOKENS - 1] * len(texts))
    return lm.backbone.logits(read_states(lm, lines)).float().log_softmax(-1)


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="run one round with two texts; write no results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    devices.configure()  # as in a run
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.rounds = 1
    models = {variant: load(arguments.model, variant) for variant in ("float32", "bfloat16", "int8")}
    texts = make_texts(models["float32"], 2 if arguments.quick else 16)
    prompts = [text[:PROMPT] for text in texts]
    expected = log_probs(models["float32"], texts)
    rows: dict[str, dict[str, Any]] = {}
    for variant, lm in models.items():
        kl = (expected.exp() * (expected - log_probs(lm, texts))).sum(-1)
        rows[variant] = {"kl": float(kl.mean()), "largest_kl": float(kl.max()), "reads": [], "writes": []}
    for _ in range(arguments.rounds):
        for variant, lm in models.items():
            rows[variant]["reads"].append(seconds(lambda lm=lm: log_probs(lm, texts)))  # type: ignore[misc]
            if variant != "int8":
                rows[variant]["writes"].append(
                    seconds(lambda lm=lm: lm.generate(prompts, max_new_tokens=NEW_TOKENS))  # type: ignore[misc]
                )
    for variant, row in rows.items():
        medians = {name: statistics.median(row[name] or [torch.nan]) for name in ("reads", "writes")}
        taken = "  ".join(f"{name} {median:6.2f} s" for name, median in medians.items())
        print(f"{variant:9} {taken}  KL {row['kl']:.2g}, at most {row['largest_kl']:.2g}")
    if not arguments.quick:
        results = {"machine": machine(), "model": Path(arguments.model).name, "variants": rows}
        (RESULTS / "frozen-cpu.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
