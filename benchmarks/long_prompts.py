"""Compare the cost of encoding long prompts with T5, with Transformers' attention and with ours.

    python benchmarks/long_prompts.py            # takes two minutes on one core
    python benchmarks/long_prompts.py --middle   # from 53 to 503 tokens, like GLAM's prompts
    python benchmarks/long_prompts.py --quick    # smoke test; writes no results

The bundled encoder-decoder reads one prompt of random tokens, or two with the shorter one padded, without and with
gradients. Variants are interleaved in one process. Memory is the growth of the process's peak.
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
from groundling.lm.kernels import BlockAttention
from groundling.runtime import devices

RESULTS = Path(__file__).parent / "results"
PROMPTS = ((88,), (88, 44), (440,), (880,), (880, 440), (1760,), (3520,))
"""Lengths in tokens of the prompts in a batch."""
WITH_GRADIENTS = PROMPTS[:5]
MIDDLE = ((53,), (128,), (256,), (256, 200), (503,), (503, 400))
WAYS = {"plain": "eager", "fused": "sdpa", "blocks": None}


def model(way: str) -> LanguageModel:
    """Return the bundled encoder-decoder with this variant of the encoder."""
    lm = LanguageModel.from_pretrained("starter", attention=WAYS[way])
    if way == "plain":  # Transformers' own attention
        blocks = [module for module in lm.modules() if isinstance(module, BlockAttention)]
        assert blocks, "the encoder has no block attention to replace"
        for module in blocks:
            kinds = type(module).__mro__
            module.__class__ = next(kind for kind in kinds if kind.__module__.startswith("transformers."))
    return lm


def read(lm: LanguageModel, lengths: tuple[int, ...], learns: bool) -> float:
    """Return the CPU seconds of one pass."""
    length = max(lengths)
    tokens = torch.randint(5, 900, (len(lengths), length), generator=torch.Generator().manual_seed(length))
    mask = (torch.arange(length) < torch.tensor(lengths)[:, None]).long()
    began = time.process_time()
    with torch.set_grad_enabled(learns):
        states = lm.backbone.encode(tokens, mask)
        if learns:
            states.square().mean().backward()
    return time.process_time() - began


def peak_growth(lm: LanguageModel, lengths: tuple[int, ...], learns: bool) -> float:
    """Return the growth of the process's peak memory during the pass, in MiB (Linux)."""

    def kilobytes(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = kilobytes("VmRSS")
    read(lm, lengths, learns)
    return (kilobytes("VmHWM") - before) / 1024


def main() -> None:
    """Measure, print and write results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--middle", action="store_true")
    arguments = parser.parse_args()
    prompts = MIDDLE if arguments.middle else WITH_GRADIENTS if arguments.quick else PROMPTS
    rounds = 1 if arguments.quick else arguments.rounds
    devices.configure()  # as in a run
    torch.set_num_threads(1)
    lms = {way: model(way) for way in WAYS}
    rows = []
    for learns in (False, True):
        for lengths in (one for one in prompts if not learns or one in (*WITH_GRADIENTS, *MIDDLE)):
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds + 1):  # the first round warms up
                for way, lm in lms.items():
                    seconds[way].append(read(lm, lengths, learns))
            for way in WAYS:
                peak = round(peak_growth(lms[way], lengths, learns), 1)
                taken = [round(value, 5) for value in seconds[way][1:]]
                figures = {"seconds": taken, "peak_growth_mib": peak}
                rows.append({"learns": learns, "tokens": lengths, "way": way, **figures})
                kind = "with gradients" if learns else "without"
                prompt = " and ".join(map(str, lengths))
                print(
                    f"{prompt:>11} tokens {kind:14} {way:6} {median(taken) * 1e3:9.1f} ms {peak:8.1f} MiB", flush=True
                )
    if not arguments.quick:
        results = {"machine": machine(), "rows": rows}
        name = "middle_prompts-cpu.json" if arguments.middle else "long_prompts-cpu.json"
        (RESULTS / name).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
