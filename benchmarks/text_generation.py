"""Compare the speed of text rollouts with Transformers' `generate` and RL4LMs' token-by-token replay.

    python benchmarks/text_generation.py            # all parts; all models except --sizes real
    python benchmarks/text_generation.py --trl VENV/bin/python   # also TRL (see trl_writing.py)
    python benchmarks/text_generation.py --trl VENV/bin/python --device cuda   # on a GPU, in wall time
    python benchmarks/text_generation.py --quick    # smoke test: small models, two rounds

There are 64 texts of 20 tokens, for prompts of 5 to 20 tokens, and models with random weights. `small` and `larger` have a
vocabulary of 1,024: GPT-2 with 2 layers x 64 and 4 x 256, and T5- and BART-like models of the same sizes (with as many
layers in both the encoder and the decoder). `real` has GPT-2's size: 12 layers x 768 and 50,257 tokens, 124 M weights; with
TRL, prompts of 128 tokens, texts of 48 and one optimizer step. Variants are interleaved in one process. Values are medians
of the CPU seconds of one thread.

decoding   `generate` is greedy and keeps scores, as in RL4LMs. `new` is a greedy `Decoder`, whose tokens must be equal and
           whose log-probabilities must agree. `sampled` is `Decoder` with one uniform number per token.
rollout    `replay` follows RL4LMs after `generate`: at each of the 20 steps, every text so far passes as one left-padded
           sequence through the policy, value model and reference, to compute log-probabilities, values and the KL.
           `new` is `TokenPolicy.write`.
iteration  `replay` adds optimizer steps on single tokens, each evaluated as a whole sequence; 5 of our 110 steps (5
           epochs, three texts per minibatch) are run, and their time is scaled. `new` is a rollout and PPO's update.

Peak memory is the high-water mark of the resident set of one rollout in a new process, with interpreter and weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from machine import machine, seconds
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.models.bart import BartConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.t5 import T5Config

from groundling.algorithms import Rollout, algorithms
from groundling.algorithms.losses import ppo_loss
from groundling.lm import LanguageModel
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling
from groundling.policies import TokenPolicy, TokenPrompt
from groundling.runtime import devices

RESULTS = Path(__file__).parent / "results"
NUM_TEXTS, NEW_TOKENS = 64, 20


class Size(NamedTuple):
    """The size of a model."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 1024
    positions: int = 64


SIZES = {"small": Size(2, 64, 4), "larger": Size(4, 256, 8), "real": Size(12, 768, 12, 50_257, 1024)}
TRL_SETTINGS: dict[str, dict[str, Any]] = {
    "small": {"prompts": (5, 20), "new_tokens": NEW_TOKENS, "epochs": 5, "steps": 8},
    "larger": {"prompts": (5, 20), "new_tokens": NEW_TOKENS, "epochs": 5, "steps": 8},
    "real": {"prompts": (128, 128), "new_tokens": 48, "epochs": 1, "steps": 1},
}
"""16 prompts of these lengths with 4 texts each; the numbers of epochs and of optimizer steps per epoch."""
FAMILIES = ("gpt2", "t5", "bart")
TARGETS = {"decoding": 2.5, "rollout": 12.0}
REPLAYED_STEPS = 5
"""Number of optimizer steps of the replay that are run; the table scales their time to our number of steps."""
STEPS = 5 * 22
"""Five epochs of 64 texts, with three texts per minibatch."""


def make_model(family: str, size: str, seed: int = 0) -> Any:
    """Return Transformers' own model, without `LanguageModel`'s changes."""
    layers, width, heads, vocabulary, positions = SIZES[size]
    common: dict[str, Any] = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config: Any
    if family == "gpt2":
        config = GPT2Config(n_embd=width, n_layer=layers, n_head=heads, n_positions=positions, **common)
    elif family == "t5":
        config = T5Config(  # type: ignore[call-arg]
            d_model=width, d_kv=width // heads, d_ff=4 * width, num_layers=layers, num_heads=heads,
            decoder_start_token_id=0, **common,
        )  # fmt: skip
    else:
        config = BartConfig(
            d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
            decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
            max_position_embeddings=positions, decoder_start_token_id=1, **common,
        )  # fmt: skip
    torch.manual_seed(seed)
    model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)
    # No end token: all texts have the same length.
    model.generation_config = GenerationConfig(
        pad_token_id=0, decoder_start_token_id=getattr(config, "decoder_start_token_id", None)
    )
    return model.eval()


def make_lm(family: str, size: str, seed: int = 0, device: str = "cpu") -> LanguageModel:
    vocabulary = {f"<{number}>": number for number in range(SIZES[size].vocabulary)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<2>")), pad_token="<0>"
    )
    return LanguageModel(make_model(family, size, seed).to(device), tokenizer)


def make_prompts(seed: int, shortest: int = 5, longest: int = 20) -> list[list[int]]:
    """Return prompts of tokens in the vocabulary of all models."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (NUM_TEXTS,), generator=generator).tolist()
    return [torch.randint(2, 1024, (n,), generator=generator).tolist() for n in lengths]


def padded(rows: list[list[int]], left: bool, length: int) -> tuple[Tensor, Tensor]:
    """Return the token ids and a 0/1 mask (num_texts, length)."""
    tokens, mask = (torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length, dtype=torch.long))
    for row, ids in enumerate(rows):
        place = slice(length - len(ids), None) if left else slice(len(ids))
        tokens[row, place], mask[row, place] = torch.tensor(ids), 1
    return tokens, mask


# Decoding


def generate(model: Any, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the tokens and log-probabilities (num_texts, num_tokens) that Transformers computes."""
    tokens, mask = padded(prompts, not model.config.is_encoder_decoder, max(map(len, prompts)))
    output = model.generate(
        input_ids=tokens, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    made = output.sequences[:, -NEW_TOKENS:]
    log_probs = torch.stack(output.scores, 1).log_softmax(-1).gather(2, made[..., None])[..., 0]
    return made, log_probs


def decoding(family: str, size: str, prompts: list[list[int]]) -> dict[str, Callable[[], Any]]:
    model, decoder = make_model(family, size), Decoder(make_lm(family, size))
    numbers = torch.rand(NUM_TEXTS, NEW_TOKENS, dtype=torch.float64)
    made, log_probs = generate(model, prompts)
    found = decoder(prompts, Sampling(do_sample=False), numbers)
    assert torch.equal(found.tokens, made), "tokens differ"
    torch.testing.assert_close(found.log_probs, log_probs, atol=1e-4, rtol=1e-4)
    return {
        "generate": lambda: generate(model, prompts),
        "new": lambda: decoder(prompts, Sampling(do_sample=False), numbers),
        "sampled": lambda: decoder(prompts, Sampling(), numbers),
    }


# Rollout and scoring


class Replay:
    """Return the log-probabilities, values and KL (num_texts, num_tokens), as computed by RL4LMs."""

    def __init__(self, family: str, size: str, value_head: Any) -> None:
        self.policy, self.value = make_model(family, size), make_model(family, size)
        self.reference = make_model(family, size, seed=1)
        self.value_head = value_head

    @torch.no_grad()
    def __call__(self, prompts: list[list[int]]) -> list[Tensor]:
        made, _ = generate(self.policy, prompts)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(NEW_TOKENS):
            written, chosen = [ids[:step].tolist() for ids in made], made[:, step, None]
            log_probs = read_last(self.policy, prompts, written, False).log_softmax(-1).gather(1, chosen)[:, 0]
            values = self.value_head(read_last(self.value, prompts, written, True))
            reference = read_last(self.reference, prompts, written, False).log_softmax(-1).gather(1, chosen)[:, 0]
            found.append((log_probs, values, log_probs - reference))
        return [torch.stack(own, 1) for own in zip(*found, strict=True)]


def read_last(model: Any, prompts: list[list[int]], written: list[list[int]], hidden: bool) -> Tensor:
    """Return logits or final hidden states at the last position, recomputed for texts padded to the env's length."""
    longest = max(map(len, prompts))
    if model.config.is_encoder_decoder:
        tokens, mask = padded(prompts, False, longest)
        line = torch.tensor([[model.config.decoder_start_token_id, *ids] for ids in written])
        inputs = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": line}
    else:
        rows = [prompt + ids for prompt, ids in zip(prompts, written, strict=True)]
        tokens, mask = padded(rows, True, longest + NEW_TOKENS)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    output = model(**inputs, output_hidden_states=True, use_cache=False)
    if not hidden:
        return output.logits[:, -1]
    return (output.decoder_hidden_states if "decoder_input_ids" in inputs else output.hidden_states)[-1][:, -1]


def make_policy(family: str, size: str, **generation: Any) -> TokenPolicy:
    torch.manual_seed(0)
    return TokenPolicy(make_lm(family, size), reference=make_lm(family, size, seed=1), generation=generation)


def rollout(family: str, size: str, prompts: list[list[int]]) -> dict[str, Callable[[], Any]]:
    policy, greedy = make_policy(family, size), make_policy(family, size, do_sample=False)
    greedy.value_head = policy.value_head
    old = Replay(family, size, policy.value_head)
    numbers = torch.rand(NUM_TEXTS, NEW_TOKENS, dtype=torch.float64)
    asked = [TokenPrompt(tuple(prompt)) for prompt in prompts]
    written = greedy.write(asked, numbers)
    for name, expected in zip(("log_probs", "values", "kl"), old(prompts), strict=True):
        torch.testing.assert_close(getattr(written, name).T, expected, atol=1e-3, rtol=1e-3)
    return {"replay": lambda: old(prompts), "new": lambda: policy.write(asked, numbers)}


# A whole iteration


def make_rollout(policy: TokenPolicy, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> Rollout:
    """Return 64 texts with a precomputed reward at the last token of each."""
    numbers = torch.rand(NUM_TEXTS, new_tokens, dtype=torch.float64)
    asked = [TokenPrompt(tuple(prompt)) for prompt in prompts]
    writing = policy.write(asked, numbers)
    values = torch.zeros(writing.actions.shape) if writing.values is None else writing.values
    distinct = {prompt: number for number, prompt in enumerate(dict.fromkeys(asked))}
    return Rollout(
        observations=writing.observations,
        actions=writing.actions,
        log_probs=writing.log_probs,
        values=values,
        rewards=writing.dones * (writing.actions % 7 / 7),
        dones=writing.dones,
        last_values=torch.zeros(NUM_TEXTS),
        last_observations=[],
        sequences=True,
        mask=writing.mask,
        groups=torch.tensor([distinct[prompt] for prompt in asked]),
        kl=writing.kl,
        raw_log_probs=writing.raw_log_probs,
    )


def iterate(algorithm: Any, policy: TokenPolicy, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> None:
    rollout = make_rollout(policy, prompts, new_tokens)
    algorithm.update(policy, rollout, generator=torch.Generator().manual_seed(0))


class ReplayUpdate:
    """Run optimizer steps as in RL4LMs, with minibatches of 64 single tokens, each with its whole prefix.

    The policy and the value model read every token as a whole sequence, padded to the env's length.
    """

    def __init__(self, family: str, size: str, prompts: list[list[int]]) -> None:
        self.policy, self.value = make_model(family, size), make_model(family, size)
        self.head = torch.nn.Linear(SIZES[size].width, 1, bias=False)
        self.prompts = prompts
        self.made = torch.randint(2, 1024, (NUM_TEXTS, NEW_TOKENS))
        self.parameters = [p for m in (self.policy, self.value, self.head) for p in m.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-6, weight_decay=1e-6)

    def __call__(self, num_steps: int) -> None:
        for _ in range(num_steps):
            drawn = torch.randperm(NUM_TEXTS * NEW_TOKENS)[:64]
            texts, steps = (drawn // NEW_TOKENS).tolist(), (drawn % NEW_TOKENS).tolist()
            asked = [self.prompts[text] for text in texts]
            written = [self.made[text, :step].tolist() for text, step in zip(texts, steps, strict=True)]
            # The decoder's rows differ in length, and are all padded to the env's length.
            distribution = read_at(self.policy, asked, written, steps, False).log_softmax(-1)
            values = self.head(read_at(self.value, asked, written, steps, True))[:, 0]
            log_probs = distribution.gather(1, self.made[texts, steps][:, None])[:, 0]
            loss = ppo_loss(
                log_probs, log_probs.detach(), torch.randn(64), values, values.detach(), torch.randn(64),
                -(distribution.exp() * distribution).sum(-1), value_clip_range=None,
            )  # fmt: skip
            self.optimizer.zero_grad()
            loss.total.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
            self.optimizer.step()


def read_at(model: Any, prompts: list[list[int]], written: list[list[int]], steps: list[int], hidden: bool) -> Tensor:
    """Like `read_last`, for texts of different lengths."""
    if not model.config.is_encoder_decoder:
        return read_last(model, prompts, written, hidden)
    tokens, mask = padded(prompts, False, max(map(len, prompts)))
    start = model.config.decoder_start_token_id
    line, own = padded([[start, *ids] for ids in written], False, NEW_TOKENS)
    output = model(
        input_ids=tokens, attention_mask=mask, decoder_input_ids=line, decoder_attention_mask=own,
        output_hidden_states=True, use_cache=False,
    )  # fmt: skip
    found: Tensor = output.decoder_hidden_states[-1] if hidden else output.logits
    return found[torch.arange(len(steps)), steps]


def iteration(family: str, size: str, prompts: list[list[int]]) -> dict[str, Callable[[], Any]]:
    policy, old = make_policy(family, size), Replay(family, size, torch.nn.Linear(SIZES[size].width, 1))
    update, algorithm = (ReplayUpdate(family, size, prompts), algorithms.get("ppo")(learning_rate=1e-6, epochs=5))
    algorithm.setup(policy)
    return {
        "replay rollout": lambda: old(prompts),
        "replay steps": lambda: update(REPLAYED_STEPS),
        "new": lambda: iterate(algorithm, policy, prompts),
        "new rollout": lambda: make_rollout(policy, prompts),
    }


def compare_with_trl(size: str, rounds: int, python: str, device: str) -> dict[str, Any]:
    """Compare with `trl_writing.py` with the settings in `TRL_SETTINGS`; PPO has a separate critic.

    TRL runs in a separate process, with one iteration after a warm-up, and is interleaved with ours.
    """
    work = TRL_SETTINGS[size]
    prompts = [prompt for prompt in make_prompts(0, *work["prompts"])[:16] for _ in range(4)]
    tokens = NUM_TEXTS * work["new_tokens"]
    options = {
        "learning_rate": 1e-6,
        "epochs": work["epochs"],
        "minibatch_size": tokens // work["steps"],
        "micro_batch_size": tokens // 8,
        "kl_coefficient": 0.02,
    }
    ids = ("grpo", "rloo") if size == "real" else ("grpo", "rloo", "ppo")

    def variant(id: str) -> Callable[[], Any]:
        policy = TokenPolicy(
            make_lm("gpt2", size, device=device),
            reference=make_lm("gpt2", size, seed=1, device=device),
            value="separate",
            critic=id == "ppo",
        )
        algorithm = algorithms.get(id)(**options)
        algorithm.setup(policy)
        return lambda: iterate(algorithm, policy, prompts, work["new_tokens"])

    def theirs(id: str) -> float:
        asked = json.dumps({"algorithm": id, "device": device, **SIZES[size]._asdict(), **work})
        command = [python, str(Path(__file__).parent / "trl_writing.py"), asked, "1"]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return float(json.loads(printed.splitlines()[-1])[0])

    ours = {id: variant(id) for id in ids}
    times: dict[str, list[float]] = {name: [] for name in (*ours, "TRL's grpo", "TRL's rloo")}
    for run in ours.values():
        run()  # warms up
    for _ in range(rounds):
        for id, run in ours.items():
            start = seconds(device)
            run()
            times[id].append(seconds(device) - start)
        for id in ("grpo", "rloo"):
            times[f"TRL's {id}"].append(theirs(id))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ratios = {
        f"{id} over TRL's {other}": medians[id] / medians[f"TRL's {other}"]
        for id, other in (("grpo", "grpo"), ("rloo", "rloo"), ("ppo", "grpo"))
        if id in ids
    }
    return {"machine": machine(device), "medians": medians, "rounds": times, "ratios": ratios}


# Timing


def measure(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):  # the first round warms up
        for name, run in variants.items():
            start = time.process_time()
            run()
            if number:
                times[name].append(time.process_time() - start)
    return {name: {"median": statistics.median(own), "rounds": own} for name, own in times.items()}


def peak_memory(family: str, size: str, variant: str) -> float:
    """Return the peak memory of one rollout in a separate process, in MiB."""
    command = [sys.executable, __file__, "--memory-of", family, size, variant]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_peak_memory(family: str, size: str, variant: str) -> None:
    policy, prompts = make_policy(family, size), make_prompts(0)
    if variant == "replay":
        Replay(family, size, policy.value_head)(prompts)
    elif variant == "new":
        asked = [TokenPrompt(tuple(prompt)) for prompt in prompts]
        policy.write(asked, torch.rand(NUM_TEXTS, NEW_TOKENS, dtype=torch.float64))
    # getrusage's ru_maxrss cannot be used, because a child process inherits its parent's.
    status = Path("/proc/self/status").read_text()
    print(int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024)


def print_table(results: dict[str, Any]) -> None:
    print(f"{'part':9} {'model':12} {'theirs s':>9} {'new s':>8} {'ratio':>6}  target")
    for name, found in results["models"].items():
        for part, target in TARGETS.items():
            theirs = found[part]["generate" if part == "decoding" else "replay"]["median"]
            ratio = theirs / found[part]["new"]["median"]
            verdict = "met" if ratio >= target else "MISSED"
            new = found[part]["new"]["median"]
            print(f"{part:9} {name:12} {theirs:9.3f} {new:8.3f} {ratio:6.2f}  >= {target}: {verdict}")
        whole = {variant: own["median"] for variant, own in found["iteration"].items()}
        replay = whole["replay rollout"] + whole["replay steps"] / REPLAYED_STEPS * STEPS
        print(f"{'iteration':9} {name:12} {replay:9.3f} {whole['new']:8.3f} {replay / whole['new']:6.2f}  >= 6 or 10")
        for variant, peak in found["peak_memory_mib"].items():
            print(f"{'memory':9} {name:12} {variant:8} {peak:6.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--sizes", nargs="+", default=["small", "larger"], choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="run 2 rounds with small models; write no results")
    parser.add_argument("--trl", metavar="PYTHON", help="compare only with TRL, installed for this interpreter")
    parser.add_argument("--device", default="cpu", help="with --trl: the device for both")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    devices.configure()  # as in a run
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.memory_of:
        print_peak_memory(*arguments.memory_of)
        return
    if arguments.device != "cpu" and not arguments.trl:
        parser.error("--device goes with --trl alone: all else is timed on the CPU")
    if arguments.trl:
        compared = {
            size: compare_with_trl(size, arguments.rounds, arguments.trl, arguments.device) for size in arguments.sizes
        }
        print(json.dumps({size: found["ratios"] for size, found in compared.items()}, indent=1))
        path = RESULTS / f"trl-{arguments.device}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | compared, indent=1) + "\n")
        return
    if arguments.quick:
        arguments.sizes, arguments.rounds = ["small"], 2
    results: dict[str, Any] = {"machine": machine(), "rounds": arguments.rounds, "models": {}}
    prompts = make_prompts(0)
    for family in arguments.families:
        for size in arguments.sizes:
            results["models"][f"{family} {size}"] = {
                "decoding": measure(decoding(family, size, prompts), arguments.rounds),
                "rollout": measure(rollout(family, size, prompts), arguments.rounds),
                "iteration": measure(iteration(family, size, prompts), arguments.rounds),
                "peak_memory_mib": {v: peak_memory(family, size, v) for v in ("idle", "replay", "new")},
            }
    results["machine"]["load_after"] = os.getloadavg()
    print_table(results)
    if not arguments.quick:
        path = RESULTS / "text_generation-cpu.json"
        before = json.loads(path.read_text())["models"] if path.exists() else {}
        results["models"] = before | results["models"]  # keep the results of families that were not run
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
