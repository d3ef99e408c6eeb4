"""Compare the speed of candidate scoring with that of the methods that it replaces and with a lower bound.

    python benchmarks/scoring.py            # takes a quarter of an hour on two cores
    python benchmarks/scoring.py --quick    # smoke test: two rounds with few prompts

There are 32 prompts of 100 to 300 tokens in the style of BabyAI-Text, with six actions each. The models have random
weights and the shapes of T5-small (60 M parameters) and of a six-layer GPT-2 (45 M). Variants are interleaved in one
process, and their medians are compared:

floor           the encoder (or the causal body) processes each prompt separately, without padding and candidates
new             `LanguageModel.score_candidates`; a causal model reads the common prefix of all prompts once, so it can be
                faster than the floor
repeated (a)    the prompts' representation is computed once, in one padded batch, and repeated for each candidate, as
                in a lean version of Lamorel with `pre_encode_inputs`
repeated-micro  the same in micro-batches, which Lamorel does not support, with less padding and memory
concatenated    (b) one row per candidate contains prompt and candidate, with logits at all positions, as in Lamorel without
                `pre_encode_inputs`; in micro-batches of two prompts, so that the logits fit; only for causal models

`forward` scores without gradients. `step` is a PPO step: forward pass, value head, clipped loss, backward pass, gradient
norm and Adam, with micro-batches of 4 prompts in `new` and `repeated-micro` (in `new` sorted by length, as in
Groundling's PPO). The step of the floor consists only of its forward and backward passes. Seconds are wall time; with
--threads 1, CPU seconds are also reported, which are more reliable on a busy machine.

Peak memory is the high-water mark of the resident set of a step in a new process. It includes the interpreter, weights,
gradients and Adam's state, which are the same for all variants and reported as `idle`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from machine import machine
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

from groundling.lm import LanguageModel, ValueHead
from groundling.prompts import glam_prompt
from groundling.runtime import devices

ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]
MICRO_BATCH = 4
RESULTS = Path(__file__).parent / "results"


# The prompts


def make_prompt(rng: random.Random) -> str:
    """Return GLAM's prompt with three invented observations."""
    colours, kinds = ["red", "green", "blue", "purple", "yellow", "grey"], ["key", "ball", "box"]

    def thing() -> str:
        return f"{rng.choice(colours)} {rng.choice(kinds)}"

    def place() -> str:
        steps = [f"{n} step{'s' * (n > 1)}" for n in (rng.randint(1, 3), rng.randint(1, 6))]
        side = rng.choice(["left", "right"])
        return rng.choice([f"{steps[0]} {side}", f"{steps[1]} forward", f"{steps[0]} {side} and {steps[1]} forward"])

    busy = rng.randint(2, 11)
    observations = [
        [f"You see a wall {place()}"] + [f"You see a {thing()} {place()}" for _ in range(rng.randint(1, busy))]
        for _ in range(3)
    ]
    return glam_prompt(f"go to the {thing()}", ACTIONS, observations, rng.choices(ACTIONS, k=2))


def make_tokenizer(texts: list[str], ends: bool, vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer trained on the prompts; with `ends`, it appends </s> to texts, as in T5."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=ends)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", bos_token="</s>")


def make_lm(family: str, seed: int, device: str, ends: bool = True) -> LanguageModel:
    """Return a random model of the family's shape and its tokenizer; with ``ends``, T5's prompts end with </s>."""
    rng = random.Random(seed)
    corpus = [make_prompt(rng) for _ in range(400)]
    torch.manual_seed(seed)
    if family == "t5":
        config = T5Config(d_ff=2048, d_model=512, num_layers=6, num_heads=8, decoder_start_token_id=0)  # type: ignore[call-arg]
        t5: Any = T5ForConditionalGeneration(config)
        return LanguageModel(t5.to(device), make_tokenizer(corpus, ends, 32128))
    # There are few merges, so that actions have 2 to 4 tokens, as with GPT-2's own vocabulary.
    gpt2: Any = GPT2LMHeadModel(GPT2Config(n_embd=512, n_layer=6, n_head=8, bos_token_id=1, eos_token_id=1))
    return LanguageModel(gpt2.to(device), make_tokenizer(corpus, False, 420))


def make_prompts(lm: LanguageModel, count: int, seed: int) -> list[str]:
    """Return `count` prompts of 100 to 300 tokens."""
    rng = random.Random(seed + 1)
    prompts: list[str] = []
    while len(prompts) < count:
        prompt = make_prompt(rng)
        if 100 <= lm.token_lengths([prompt])[0] <= 300:
            prompts.append(prompt)
    return prompts


# The variants: each scores some prompts, (num_prompts, num_actions) log-probabilities and (num_prompts, hidden) states

Score = Callable[[LanguageModel, Sequence[str]], tuple[Tensor, Tensor]]


def score_new(lm: LanguageModel, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    scored = lm.score_candidates(prompts, ACTIONS)
    return scored.log_probs, scored.state


def token_ids(lm: LanguageModel, prompts: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the token ids (length,) of the prompts, and of the actions without special tokens."""
    ids = [torch.tensor(own, device=lm.device) for own in lm.tokenizer(list(prompts))["input_ids"]]
    actions = lm.tokenizer(ACTIONS, add_special_tokens=False)["input_ids"]
    return ids, [torch.tensor(own, device=lm.device) for own in actions]


def padded(ids: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the token ids and a 0/1 mask, (rows, longest)."""
    return pad_sequence(ids, batch_first=True), pad_sequence([torch.ones_like(own) for own in ids], batch_first=True)


def summed(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the log-probabilities (rows,) of targets (rows, length) under logits (rows, length, vocabulary)."""
    chosen = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return (chosen * mask).sum(-1)


def score_repeated_encoder_decoder(lm: LanguageModel, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    ids, actions = token_ids(lm, prompts)
    tokens, mask = padded(ids)
    targets, targets_mask = padded(actions)
    states = lm.model.get_encoder()(input_ids=tokens, attention_mask=mask).last_hidden_state
    rows = len(prompts)
    start = torch.full((len(actions), 1), lm.model.config.decoder_start_token_id, device=lm.device)
    output = lm.model(
        encoder_outputs=BaseModelOutput(last_hidden_state=states.repeat_interleave(len(actions), 0)),
        attention_mask=mask.repeat_interleave(len(actions), 0),
        decoder_input_ids=torch.cat([start, targets[:, :-1]], 1).repeat(rows, 1),
        output_hidden_states=True,
        use_cache=False,
    )
    scores = summed(output.logits, targets.repeat(rows, 1), targets_mask.repeat(rows, 1))
    return scores.view(rows, -1), output.decoder_hidden_states[-1][:: len(actions), 0]


def score_repeated_causal(lm: LanguageModel, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    ids, actions = token_ids(lm, prompts)
    tokens, mask = padded(ids)
    targets, targets_mask = padded(actions)
    lengths, rows, each = mask.sum(1), len(prompts), len(actions)
    body: Any = lm.model.get_decoder()
    cache = DynamicCache(config=lm.model.config)
    hidden = body(input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True).last_hidden_state
    state = hidden[torch.arange(rows), lengths - 1]  # (rows, hidden)
    cache.batch_repeat_interleave(each)
    read = targets[:, :-1].repeat(rows, 1)
    positions = lengths.repeat_interleave(each)[:, None] + torch.arange(read.shape[1], device=lm.device)
    hidden = body(
        input_ids=read,
        attention_mask=torch.cat([mask.repeat_interleave(each, 0), torch.ones_like(read)], 1),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    hidden = torch.cat([state.repeat_interleave(each, 0)[:, None], hidden], 1)
    logits = lm.model.get_output_embeddings()(hidden)
    return summed(logits, targets.repeat(rows, 1), targets_mask.repeat(rows, 1)).view(rows, -1), state


def score_concatenated(lm: LanguageModel, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    ids, actions = token_ids(lm, prompts)
    tokens, mask = padded([torch.cat([prompt, action]) for prompt in ids for action in actions])
    output = lm.model(input_ids=tokens, attention_mask=mask, output_hidden_states=True, use_cache=False)
    log_probs = output.logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    starts = torch.tensor([len(prompt) for prompt in ids for _ in actions], device=lm.device)[:, None]
    mask = mask[:, 1:] * (torch.arange(1, tokens.shape[1], device=lm.device) >= starts)
    state = output.hidden_states[-1][torch.arange(len(tokens)), starts[:, 0] - 1][:: len(actions)]
    return (log_probs * mask).sum(-1).view(len(prompts), -1), state


def floor_states(lm: LanguageModel, prompts: Sequence[str]) -> list[Tensor]:
    """Return the final states (1, length, hidden) of each prompt, which is read separately."""
    ids, _ = token_ids(lm, prompts)
    body: Any = lm.model.get_encoder() if lm.is_encoder_decoder else lm.model.get_decoder()
    return [body(input_ids=own[None], use_cache=False).last_hidden_state for own in ids]


VARIANTS: dict[str, dict[str, Score]] = {
    "t5": {
        "new": score_new,
        "repeated": score_repeated_encoder_decoder,
        "repeated-micro": score_repeated_encoder_decoder,
    },
    "gpt2": {
        "new": score_new,
        "repeated": score_repeated_causal,
        "repeated-micro": score_repeated_causal,
        "concatenated": score_concatenated,
    },
}
TARGETS = {"t5": {"floor": 1.5, "repeated": 2.2}, "gpt2": {"floor": 1.5, "repeated": 1.8, "concatenated": 6.0}}


# Timing


def micro_batches(lm: LanguageModel, prompts: Sequence[str], variant: str) -> Iterator[list[str]]:
    if variant == "new":  # the others keep the order of the prompts
        lengths = lm.token_lengths(prompts)
        prompts = [prompts[index] for index in sorted(range(len(prompts)), key=lambda i: lengths[i])]
    size = {"concatenated": 2, "repeated": len(prompts)}.get(variant, MICRO_BATCH)
    for first in range(0, len(prompts), size):
        yield list(prompts[first : first + size])


@torch.no_grad()
def forward(lm: LanguageModel, prompts: Sequence[str], variant: str, family: str) -> None:
    if variant == "floor":
        floor_states(lm, prompts)
    elif variant == "new":
        score_new(lm, prompts)
    else:
        for batch in micro_batches(lm, prompts, variant):
            VARIANTS[family][variant](lm, batch)


class Step:
    """Run one PPO step of a variant, with its own value head and optimizer."""

    def __init__(self, lm: LanguageModel, prompts: Sequence[str], variant: str, family: str) -> None:
        self.lm, self.prompts, self.variant, self.family = lm, prompts, variant, family
        self.head = ValueHead(lm.hidden_size).to(lm.device)
        self.parameters = [*lm.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-6)

    def __call__(self) -> None:
        if self.variant == "floor":
            for batch in micro_batches(self.lm, self.prompts, "new"):
                torch.cat([states.mean(1) for states in floor_states(self.lm, batch)]).square().mean().backward()
            self.lm.zero_grad()
            return
        for batch in micro_batches(self.lm, self.prompts, self.variant):
            log_probs, state = VARIANTS[self.family][self.variant](self.lm, batch)
            loss = ppo_like_loss(log_probs.log_softmax(-1), self.head(state))
            (loss * len(batch) / len(self.prompts)).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()


def ppo_like_loss(log_policy: Tensor, values: Tensor) -> Tensor:
    """Return the clipped policy loss, value loss and entropy of (rows, actions) and (rows,), for invented advantages."""
    actions = torch.arange(len(values), device=values.device) % log_policy.shape[1]
    advantages = torch.linspace(-1, 1, len(values), device=values.device)
    chosen = log_policy.gather(1, actions[:, None])[:, 0]
    ratio = (chosen - chosen.detach()).exp()
    policy = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    entropy = -(log_policy.exp() * log_policy).sum(-1).mean()
    return policy + 0.5 * (values - advantages).square().mean() - 0.01 * entropy


def seconds(run: Callable[[], None], device: str) -> tuple[float, float]:
    """Return the wall and CPU seconds."""
    start = time.perf_counter(), time.process_time()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def check_agreement(lm: LanguageModel, prompts: Sequence[str], family: str) -> None:
    with torch.no_grad():
        expected, state = VARIANTS[family]["new"](lm, prompts)
        for name, score in VARIANTS[family].items():
            found, found_state = score(lm, prompts)
            torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4, msg=f"{name} scores differ")
            torch.testing.assert_close(found_state, state, atol=1e-3, rtol=1e-3, msg=f"{name} states differ")


def measure_family(family: str, arguments: argparse.Namespace) -> dict[str, Any]:
    lm = make_lm(family, arguments.seed, arguments.device)
    prompts = make_prompts(lm, arguments.prompts, arguments.seed)
    check_agreement(lm, prompts[:4], family)
    names = ["floor", *VARIANTS[family]]
    steps = {name: Step(lm, prompts, name, family) for name in names}
    runs: dict[str, dict[str, Callable[[], None]]] = {
        "forward": {name: lambda name=name: forward(lm, prompts, name, family) for name in names},  # type: ignore[misc]
        "step": dict(steps),
    }
    lengths = lm.token_lengths(prompts)
    result: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in lm.parameters()),
        "prompt_tokens": {"min": min(lengths), "mean": sum(lengths) / len(lengths), "max": max(lengths)},
        "action_tokens": [len(own) for own in token_ids(lm, ["go"])[1]],
    }
    for kind, variants in runs.items():
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        for number in range(arguments.rounds + 1):  # the first round warms up
            for name, run in variants.items():
                took = seconds(run, arguments.device)
                if number:
                    times[name].append(took)
        result[kind] = {
            name: {
                "median": statistics.median(wall for wall, _ in own),
                "cpu_median": statistics.median(cpu for _, cpu in own),
                "rounds": own,
            }
            for name, own in times.items()
        }
    if arguments.device == "cpu":
        shown = ["idle", "new", "repeated", "repeated-micro"]
        result["peak_memory_mib"] = {name: peak_memory(family, name, arguments) for name in shown}
    return result


def peak_memory(family: str, variant: str, arguments: argparse.Namespace) -> float:
    """Return the peak memory of one step in a separate process, in MiB."""
    command = [sys.executable, __file__, "--memory-of", family, variant, "--threads", str(arguments.threads)]
    command += ["--prompts", str(arguments.prompts), "--seed", str(arguments.seed)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_peak_memory(family: str, variant: str, arguments: argparse.Namespace) -> None:
    lm = make_lm(family, arguments.seed, "cpu")
    step = Step(lm, make_prompts(lm, arguments.prompts, arguments.seed), variant, family)
    if variant == "idle":
        for parameter in step.parameters:
            parameter.grad = torch.zeros_like(parameter)
        step.optimizer.step()
    else:
        step()
        step()  # creates the optimizer's state
    # getrusage's ru_maxrss cannot be used, because a child process inherits its parent's.
    status = Path("/proc/self/status").read_text()
    print(int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024)


# Report


def print_table(results: dict[str, Any]) -> None:
    for family, result in results["families"].items():
        tokens = result["prompt_tokens"]
        print(
            f"\n{family}: {result['parameters'] / 1e6:.0f} M parameters, prompts of {tokens['min']} to {tokens['max']} "
            f"tokens (mean {tokens['mean']:.0f}), actions of {result['action_tokens']}"
        )
        print(
            f"{'':8} {'variant':14} {'wall s':>8} {'x floor':>8} {'x new':>6} {'CPU s':>8} {'x floor':>8} {'x new':>6}"
        )
        for kind in ("forward", "step"):
            wall = {name: own["median"] for name, own in result[kind].items()}
            cpu = {name: own["cpu_median"] for name, own in result[kind].items()}
            for name in wall:
                figures = " ".join(
                    f"{own[name]:8.3f} {own[name] / own['floor']:8.2f} {own[name] / own['new']:6.2f}"
                    for own in (wall, cpu)
                )
                print(f"{kind:8} {name:14} {figures}   {target_told(family, name, wall)}")
        memory = result.get("peak_memory_mib", {})
        for name, peak in memory.items():
            shown = ""
            if name == "repeated":
                share = memory["new"] / peak
                shown = f"new takes {share:.0%} of it; <= 40%: {'met' if share <= 0.4 else 'MISSED'}"
            print(f"{'memory':8} {name:14} {peak:6.0f} MiB   {shown}")


def target_told(family: str, name: str, medians: dict[str, float]) -> str:
    """Return a text that states whether a variant meets its target, in wall seconds."""
    if name in ("floor", "repeated-micro"):
        return ""
    if name == "new":
        limit, found = TARGETS[family]["floor"], medians["new"] / medians["floor"]
        return f"new <= {limit} x floor: {'met' if found <= limit else 'MISSED'}"
    limit, found = TARGETS[family][name], medians[name] / medians["new"]
    return f">= {limit} x new: {'met' if found >= limit else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["t5", "gpt2"], choices=["t5", "gpt2"])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="run 2 rounds with 8 prompts; write no results")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.prompts, arguments.rounds = 8, 2
    devices.configure()  # as in a run
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        family, variant = arguments.memory_of
        print_peak_memory(family, variant, arguments)
        return
    results: dict[str, Any] = {
        "settings": {key: value for key, value in vars(arguments).items() if key != "memory_of"},
        "machine": machine(arguments.device),
        "families": {family: measure_family(family, arguments) for family in arguments.families},
    }
    results["machine"]["load_after"] = os.getloadavg()
    print_table(results)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"scoring-{arguments.device}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
