"""Compare whole-episode conversations with prompts of three observations, in acting and learning.

    python benchmarks/conversations.py            # about 40 minutes on one core; requires smollm2
    python benchmarks/conversations.py --quick    # smoke test with the bundled model; writes no results
    python benchmarks/conversations.py --device cuda --models starter-causal gpt2-45m

An agent takes random actions in BabyAI-Text in episodes of 20, 40 and 60 steps, with 8 envs and with one. It scores six
actions at each step, and then learns from two of the episodes, with one forward and one backward pass each. The input is
either GLAM's prompt of three observations or the whole conversation. Both are interleaved in one process for each length.

SmolLM2 is trained with LoRA; all weights of the GPT-2-like model (45 M random weights, 50,257 tokens) are trained. Memory
is the growth of the peak during the learning pass. Times are CPU seconds, or wall time with a GPU.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from machine import machine, seconds
from transformers import GPT2Config, GPT2LMHeadModel

from groundling.envs.text_env import TextObservation
from groundling.envs.vector import TextVectorEnv
from groundling.lm import LanguageModel
from groundling.policies import ActionScoringPolicy
from groundling.runtime import devices

RESULTS = Path(__file__).parent / "results"
LENGTHS = (20, 40, 60)
NUM_ENVS = 8
_NUM_LEARNT = 2
"""Number of training episodes per round."""
ENV = "BabyAI-PutNextLocal-v0"
"""There are eight objects in a room, and random agents hardly ever finish an episode."""


@dataclass
class Way:
    """A form of the input, with its own policy."""

    name: str
    policy: ActionScoringPolicy
    history: int | None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Seconds per step, by activity."""
    seen: list[TextObservation] = field(default_factory=list)
    """The last episodes' observations, ``NUM_ENVS`` per step."""

    @property
    def device(self) -> str:
        """The device of the policy's model."""
        return str(self.policy.lm.device)

    @classmethod
    def all(cls, lm: LanguageModel) -> list["Way"]:
        """Return both forms, which share a model."""
        policies = [ActionScoringPolicy(lm, prompt=p, value_hidden_sizes=(64,)) for p in ("glam", "conversation")]
        return [cls("windowed", policies[0], 3), cls("conversation", policies[1], None)]

    def act(self, num_envs: int, length: int) -> list[TextObservation]:
        """Play random steps, with scoring at each step, and return the observations."""
        envs = TextVectorEnv.make(ENV, num_envs, history=self.history, seed=length)
        generator = torch.Generator().manual_seed(length)
        present, seen = envs.reset(), list[TextObservation]()
        with self.policy.unchanged():
            for _ in range(length):
                self.policy.act(present)
                seen += present
                actions = torch.randint(0, 6, (num_envs,), generator=generator)
                present = envs.step(actions.tolist()).observations
        envs.close()
        return seen

    def learn(self, env: int) -> int:
        """Run one pass with gradients over an env's steps, and return the number of steps."""
        steps = self.seen[env::NUM_ENVS]
        actions = torch.zeros(len(steps), dtype=torch.long, device=self.device)
        evaluation = self.policy.evaluate(steps, actions)
        (evaluation.log_probs.mean() + evaluation.values.mean()).backward()
        self.policy.zero_grad()
        return len(steps)

    def tokens_a_step(self) -> float:
        """Return the number of tokens per step after the env's common prefix or, in conversations, the last turn."""
        total = 0
        for env in range(NUM_ENVS):
            prompts = self.policy.lm.prompt_tokens(self.policy.read(self.seen[env::NUM_ENVS]))
            if self.history is None:
                total += len(prompts[-1])
            else:
                shared = next(i for i, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1)
                total += sum(len(prompt) - shared for prompt in prompts)
        return round(total / len(self.seen), 1)

    def measure(self, length: int) -> None:
        """Act and learn once."""
        for doing, num_envs in (("acting", NUM_ENVS), ("acting alone", 1)):
            began = seconds(self.device)
            seen = self.act(num_envs, length)
            self._note(doing, began, len(seen))
            self.seen = seen if num_envs == NUM_ENVS else self.seen
        began = seconds(self.device)
        learnt = sum(self.learn(env) for env in range(_NUM_LEARNT))
        self._note("learning", began, learnt)

    def _note(self, doing: str, began: float, steps: int) -> None:
        taken = (seconds(self.device) - began) / steps
        self.seconds.setdefault(doing, []).append(round(taken, 5))

    def peak_growth(self) -> float:
        """Return the growth of peak memory in MiB (process or GPU) while learning from one episode (Linux)."""
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            self.learn(0)
            return round((torch.cuda.max_memory_allocated() - held) / 2**20, 1)

        def kilobytes(name: str) -> int:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(name))

        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = kilobytes("VmRSS")
        self.learn(0)
        return round((kilobytes("VmHWM") - before) / 1024, 1)


def gpt2_45m(device: str) -> LanguageModel:
    """Return a random GPT-2-like model with 6 layers of width 512, 50,257 tokens, context 8,192, SmolLM2's tokenizer."""
    tokenizer = LanguageModel.from_pretrained("smollm2").tokenizer
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50_257, n_layer=6, n_embd=512, n_head=8, n_positions=8192)
    model: Any = GPT2LMHeadModel(config)
    return LanguageModel(model.to(device), tokenizer)


MODELS: dict[str, Callable[[str], LanguageModel]] = {
    "starter-causal": lambda device: LanguageModel.from_pretrained("starter-causal", device=device),
    "gpt2-45m": gpt2_45m,
    "smollm2": lambda device: LanguageModel.from_pretrained(
        "smollm2", device=device, lora={"r": 16, "target_modules": "all-linear"}
    ),
}


def main() -> None:
    """Measure, print and write results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    devices.configure()  # as in a run
    torch.set_num_threads(1)
    rows, clock = [], "cpu" if arguments.device == "cpu" else "wall"
    for name in ["starter-causal"] if arguments.quick else arguments.models:
        lm = MODELS[name](arguments.device)
        for length in LENGTHS[:1] if arguments.quick else LENGTHS:
            ways = Way.all(lm)
            for _ in range(1 if arguments.quick else arguments.rounds):
                for way in ways:
                    way.measure(length)
            for way in ways:
                figures = "  ".join(f"{doing} {median(s) * 1e3:8.1f} ms" for doing, s in way.seconds.items())
                longest = max(work.tokens for work in way.policy.work(way.seen) or ())
                tokens, growth = way.tokens_a_step(), way.peak_growth()
                line = f"{name:14} {length:3} steps {way.name:12} {figures}  {tokens:5} tokens  {growth:4.0f} MiB"
                print(line, flush=True)
                about: dict[str, Any] = {"model": name, "steps": length, "way": way.name}
                about |= {"longest_prompt": longest, "tokens_a_step": tokens}
                rows.append(
                    {**about, f"{clock}_seconds_a_step": way.seconds, "peak_growth_mib_of_one_episode": growth}
                )
            for doing in ways[0].seconds:
                ratio = median(ways[0].seconds[doing]) / median(ways[1].seconds[doing])
                print(f"{'':14} {doing}: {ratio:.2f} x", flush=True)
            if not arguments.quick:  # after each length, so that interrupted runs keep results
                results = {"machine": machine(arguments.device), "rows": rows}
                (RESULTS / f"conversations-{arguments.device}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
