"""What an encoder's reading of one prompt costs as it grows: T5's attention as Transformers has it, and in blocks.

    python benchmarks/long_prompts.py            # two minutes of one core
    python benchmarks/long_prompts.py --quick    # does it run; writes no results

The bundled encoder-decoder reads prompts of random tokens, without gradients and with those of all its weights. Both
ways take turns on each length in one process; the memory is by how much its peak grows.
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from machine import machine

from groundling.lm import LanguageModel
from groundling.lm.relative_attention import _InBlocks

RESULTS = Path(__file__).parent / "results"
LENGTHS = (88, 440, 880, 1760, 3520)
LEARNT = (88, 440, 880)
WAYS = {"plain": "eager", "fused": "sdpa", "blocks": None}


def model(way: str) -> LanguageModel:
    """The bundled encoder-decoder whose encoder reads in this way."""
    lm = LanguageModel.from_pretrained("starter", attention=WAYS[way])
    if way == "plain":  # as it was before its attention went in blocks
        blocks = [module for module in lm.modules() if isinstance(module, _InBlocks)]
        assert blocks, "the encoder has no attention in blocks to be put back"
        for module in blocks:
            kinds = type(module).__mro__
            module.__class__ = next(kind for kind in kinds if kind.__module__.startswith("transformers."))
    return lm


def read(lm: LanguageModel, length: int, learns: bool) -> float:
    """CPU seconds of one pass."""
    tokens = torch.randint(5, 900, (1, length), generator=torch.Generator().manual_seed(length))
    began = time.process_time()
    with torch.set_grad_enabled(learns):
        states = lm.backbone.encode(tokens, torch.ones_like(tokens))
        if learns:
            states.square().mean().backward()
    return time.process_time() - began


def peak_growth(lm: LanguageModel, length: int, learns: bool) -> float:
    """MiB by which the process grows at most during the pass (Linux)."""

    def kilobytes(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kilobytes("VmRSS")
    read(lm, length, learns)
    return (kilobytes("VmHWM") - before) / 1024


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    lengths = LENGTHS[:3] if arguments.quick else LENGTHS
    rounds = 1 if arguments.quick else arguments.rounds
    torch.set_num_threads(1)
    lms = {way: model(way) for way in WAYS}
    rows = []
    for learns in (False, True):
        for length in (one for one in lengths if not learns or one in LEARNT):
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds + 1):  # the first warms up
                for way, lm in lms.items():
                    seconds[way].append(read(lm, length, learns))
            for way in WAYS:
                peak = round(peak_growth(lms[way], length, learns), 1)
                taken = [round(value, 5) for value in seconds[way][1:]]
                figures = {"seconds": taken, "peak_growth_mib": peak}
                rows.append({"learns": learns, "tokens": length, "way": way, **figures})
                kind = "with gradients" if learns else "without"
                print(
                    f"{length:5} tokens {kind:14} {way:6} {median(taken) * 1e3:9.1f} ms {peak:8.1f} MiB",
                    flush=True,
                )
    if not arguments.quick:
        results = {"machine": machine(), "rows": rows}
        (RESULTS / "long_prompts-cpu.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
