"""Compare Lamorel's scorer with ours on the same models, prompts and actions.

    git clone https://github.com/flowersteam/lamorel
    python3 -m venv pins && pins/bin/pip install transformers==4.44.2 accelerate==0.33.0 hydra-core torch==2.13.0
    taskset -c 0 python benchmarks/lamorel_scoring.py --lamorel lamorel --python pins/bin/python

The prompts, actions and models are those of `scoring.py`, with tokenizers that add no end token, as in Lamorel. Lamorel's
language model class runs in a separate process, without servers and messages, with and without `pre_encode_inputs`. Times
are medians of CPU seconds of one thread per call for all prompts, with interleaved variants and loaded models.
`differences` are the largest differences of scores, in nats: Lamorel shifts the positions of padded causal prompts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
MINIBATCH = 48
"""Lamorel's batch size; the logits of more prompts do not fit into memory."""


def theirs(folder: str, asked: dict[str, Any], lamorel: str) -> None:
    """Print the seconds and scores of one call after a warm-up as JSON; runs in an environment with Lamorel's pins."""
    sys.path.insert(0, str(Path(lamorel) / "lamorel" / "src"))
    from lamorel.server.llms import HF_LLM
    from lamorel.server.llms.module_functions import LogScoringModuleFn

    torch.set_num_threads(1)
    settings = SimpleNamespace(
        seed=1, model_type=asked["type"], model_path=folder, pretrained=True, minibatch_size=MINIBATCH,
        pre_encode_inputs=asked["pre_encode"], load_in_4bit=False,
        parallelism=SimpleNamespace(synchronize_gpus_after_scoring=False, empty_cuda_cache_after_scoring=False),
    )  # fmt: skip
    model: Any = HF_LLM(settings, [0], use_cpu=True)
    score: Any = LogScoringModuleFn(model.pad_token, asked["type"], asked["pre_encode"])
    score.device, score.llm_config = "cpu", model.get_model_config()
    model.register_module_functions({"__score": score})
    candidates = [asked["actions"]] * len(asked["prompts"])
    for _ in range(2):
        start = time.process_time()
        scored = model(["__score"], asked["prompts"], candidates=candidates)
        seconds = time.process_time() - start
    print(json.dumps({"seconds": seconds, "scores": [one["__score"].tolist() for one in scored]}))


def save(lm: Any, folder: str) -> None:
    """Save in a format that older versions of Transformers can read."""
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    settings, words = Path(folder) / "tokenizer_config.json", Path(folder) / "tokenizer.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    content = json.loads(words.read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    words.write_text(json.dumps(content))


def measure(family: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from scoring import ACTIONS, make_lm, make_prompts

    lm = make_lm(family, 0, "cpu", ends=False)
    prompts = make_prompts(lm, arguments.prompts, 0)
    ways = {"encoded beforehand": True, "read whole": False}
    seconds: dict[str, list[float]] = {"ours": [], **{way: [] for way in ways}}
    differences: dict[str, float] = {}
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        save(lm, folder)
        expected = torch.stack(lm.score(prompts, ACTIONS))
        for _ in range(arguments.rounds):
            start = time.process_time()
            lm.score(prompts, ACTIONS)
            seconds["ours"].append(time.process_time() - start)
            for way, pre_encode in ways.items():
                if way in refused:
                    continue
                kind = "seq2seq" if lm.is_encoder_decoder else "causal"
                asked = {"type": kind, "pre_encode": pre_encode, "prompts": prompts, "actions": ACTIONS}
                command = [arguments.python, __file__, "--theirs", folder, "--lamorel", arguments.lamorel]
                done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
                if done.returncode:
                    refused[way] = done.stderr.strip().splitlines()[-1]
                    continue
                answer = json.loads(done.stdout.splitlines()[-1])
                seconds[way].append(answer["seconds"])
                differences[way] = float((torch.tensor(answer["scores"]) - expected).abs().max())
    medians = {name: statistics.median(taken) for name, taken in seconds.items() if taken}
    for name, median in medians.items():
        apart = f", scores within {differences[name]:.2g} of ours" if name in differences else ""
        print(f"{family:5} {name:18} {median:8.2f} s  {median / medians['ours']:6.1f} x ours{apart}", flush=True)
    for name, why in refused.items():
        print(f"{family:5} {name:18} refused: {why}", flush=True)
    return {"seconds": seconds, "medians": medians, "differences": differences, "refused": refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lamorel", required=True, metavar="FOLDER", help="a checkout of Lamorel")
    parser.add_argument("--python", metavar="PYTHON", help="a Python interpreter with Lamorel's pinned packages")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--theirs", metavar="MODEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.theirs:
        theirs(arguments.theirs, json.load(sys.stdin), arguments.lamorel)
        return
    from machine import machine

    torch.set_num_threads(1)
    families = {family: measure(family, arguments) for family in ("t5", "gpt2")}
    pins = subprocess.run(
        [arguments.python, "-c", "import transformers; print(transformers.__version__)"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    results = {"machine": machine(), "their_transformers": pins, "prompts": arguments.prompts, **families}
    (RESULTS / "lamorel-cpu.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
