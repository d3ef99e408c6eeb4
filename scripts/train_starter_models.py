"""Train the two bundled models on generated text: `python scripts/train_starter_models.py`.

The script writes `encoder_decoder/` (T5) and `causal/` (Llama) with their tokenizers to `src/groundling/lm/starter/`.
The corpus is generated during training (see `starter_corpus.py`), and nothing is downloaded. The same seed, thread
count and PyTorch version result in the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from starter_corpus import (
    DOCUMENTS,
    Document,
    DocumentMaker,
    documents,
    join,
    labelled,
    measured,
    recited,
    renamed,
    sought,
)
from starter_muon import Muon
from starter_probes import measure
from starter_tokenizer import SENTINELS, build_tokenizer, fast_tokenizer
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack

STARTER = Path(__file__).resolve().parents[1] / "src/groundling/lm/starter"
WIDTH = 128
HEADS = 8
SIZE = WIDTH // HEADS  # size of a head
INNER = 256  # units of the feed-forward layers: the tasks need little arithmetic
LONGEST = 240  # maximum number of tokens in a text
CHUNK = 1500  # texts that are batched by length
IGNORED = -100
# Scenes are random, so little can be learned from contexts; the signal is in the answers.
CONTEXT_WEIGHT = 0.03


@dataclass
class Example:
    """Token ids of inputs and targets; for a causal model, of a single sequence."""

    source: list[int]
    target: list[int]
    weights: list[float]

    def __len__(self) -> int:
        return len(self.source) + len(self.target)


# -------------------------------------------------------------------------------------------------- examples


def corrupt(random: Random, ids: list[int], sentinels: list[int]) -> tuple[list[int], list[int]]:
    """Apply T5's span corruption: sentinels replace spans, and the target contains the spans."""
    source, target, position = [], [], 0
    for sentinel in sentinels:
        start = position + random.randint(1, 8)
        end = start + random.randint(1, 4)
        if end > len(ids):
            break
        source += [*ids[position:start], sentinel]
        target += [sentinel, *ids[start:end]]
        position = end
    return source + ids[position:], target


def token_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def encoder_decoder_example(tokenizer: PreTrainedTokenizerFast, random: Random, document: Document) -> Example:
    """Encode the context and one question; further questions are decoder inputs.

    Plain text is either continued or denoised.
    """
    end = [tokenizer.eos_token_id]
    question, answer = document.turns[0]
    if document.context and len(document.turns) > 1:
        asked_first = random.random() < 0.5
        source = token_ids(tokenizer, join(document.context, question if asked_first else ""))
        target, weights = [], []
        for index, (question, answer) in enumerate(document.turns):
            asked = [] if asked_first and index == 0 else token_ids(tokenizer, question)
            told = token_ids(tokenizer, f"{answer};")
            target += asked + told
            weights += [CONTEXT_WEIGHT] * len(asked) + [1.0] * len(told)
        return Example(source + end, target + end, [*weights, 1.0])
    if document.context or question:
        source, target = token_ids(tokenizer, join(document.context, question)), token_ids(tokenizer, answer)
    else:
        text = token_ids(tokenizer, answer)
        cut = random.randint(1, max(1, len(text) - 1))
        source, target = text[:cut], text[cut:]
        if random.random() < 0.5:
            source, target = corrupt(random, text, tokenizer.convert_tokens_to_ids(SENTINELS))
    return Example(source + end, target + end, [1.0] * (len(target) + 1))


def causal_example(tokenizer: PreTrainedTokenizerFast, random: Random, document: Document) -> Example:
    """Encode the document as one sequence. Answers are tokenised separately, like a policy's candidates."""
    tokens, weights = [tokenizer.bos_token_id], [0.0]
    for index, (question, answer) in enumerate(document.turns):
        asked = token_ids(tokenizer, join(document.context, question) if index == 0 else f"\n {question}")
        told = token_ids(tokenizer, answer)
        # An answer includes its end: a line break before another question, otherwise the end token.
        if index == len(document.turns) - 1:
            told.append(tokenizer.eos_token_id)
        tokens += asked + told
        weights += [CONTEXT_WEIGHT] * len(asked) + [1.0] * len(told)
        if index > 0:
            weights[-len(told) - len(asked)] = 1.0
    return Example([], tokens, weights)


def batches(examples: list[Example], tokens: int, random: Random) -> Iterator[list[Example]]:
    """Yield batches of about `tokens` tokens, which contain examples of similar length, in random order."""
    order = sorted(range(len(examples)), key=lambda index: (len(examples[index]), random.random()))
    groups: list[list[Example]] = [[]]
    for index in order:
        if (len(groups[-1]) + 1) * len(examples[index]) > tokens:
            groups.append([])
        groups[-1].append(examples[index])
    random.shuffle(groups)
    yield from groups


@dataclass(frozen=True)
class Stage:
    """A stage of training on `count` new texts of some kinds, each with at most `longest` tokens."""

    kinds: Mapping[DocumentMaker, float]
    count: int
    longest: int = LONGEST


def examples_of(
    stage: Stage, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, random: Random, tokens: int
) -> Iterator[list[Example]]:
    """Yield a stage's batches."""
    for start in range(0, stage.count, CHUNK):
        chunk = documents(random.randrange(2**40), min(CHUNK, stage.count - start), stage.kinds)
        examples = [recipe.example(tokenizer, random, document) for document in chunk]
        yield from batches([one for one in examples if len(one) <= stage.longest], tokens, random)


def padded(rows: list[list], value: float, dtype: torch.dtype = torch.long) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows], dtype=dtype)


# ---------------------------------------------------------------------------------------------------- models


@torch.no_grad()
def new_encoder_decoder(tokenizer: PreTrainedTokenizerFast) -> T5ForConditionalGeneration:
    """Return a T5 with more encoder layers than decoder layers, because look-up happens in the encoder."""
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        d_ff=INNER,
        d_kv=SIZE,
        num_heads=HEADS,
        num_layers=4,
        num_decoder_layers=2,
        feed_forward_proj="relu",
        dropout_rate=0.0,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    model = T5ForConditionalGeneration(config)
    # T5 initialises embeddings with a standard deviation of 1, and Adam changes such values slowly.
    torch.nn.init.normal_(model.shared.weight, std=0.3)
    look_near(model.encoder, [(-1, -1), (1, 1), (2, 2), (3, 4), (-3, -2)], both_sides=True)
    look_near(model.decoder, [(-1, -1), (-3, -2)], both_sides=False)
    join_up(model)
    return model


def look_near(stack: T5Stack, ranges: list[tuple[int, int]], both_sides: bool) -> None:
    """Initialise some heads to attend to neighbours and, in the encoder, the others to avoid the token itself.

    Names and places are neighbours in a sentence. If biases start at zero, they take a thousand steps to learn this.
    """
    attention = stack.block[0].layer[0].SelfAttention
    distances = torch.arange(-8, 9)
    buckets = attention._relative_position_bucket(distances, bidirectional=both_sides)
    bias = attention.relative_attention_bias.weight  # (buckets, heads)
    for head, (first, last) in enumerate(ranges):
        bias[buckets[(distances >= first) & (distances <= last)].unique(), head] += 5.0
    if both_sides:
        bias[0, len(ranges) :] -= 3.0


def join_up(model: T5ForConditionalGeneration) -> None:
    """Initialise attention for look-up: store neighbouring names, compare them, and copy places.

    Four heads of the encoder's first layer copy a token's neighbours (see `look_near`), each to a reserved subspace.
    Later layers compare tokens in the subspace of previous tokens, so that a colour and its noun match together, and
    read the other subspaces. Outputs have the same basis as the inputs. Equal queries and keys speed up look-up, as in
    mimetic initialisation (Trockman and Kolter, arXiv 2305.09828).
    """
    basis = torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q.T
    before, *after = parts = [basis[SIZE * part : SIZE * (part + 1)] for part in range(4)]
    first, *later = (block.layer[0].SelfAttention for block in model.encoder.block)
    crossing = [block.layer[1].EncDecAttention for block in model.decoder.block]
    written = model.decoder.block[0].layer[0].SelfAttention
    rows = [slice(SIZE * head, SIZE * (head + 1)) for head in range(HEADS)]
    for attention in (*later, *crossing):
        attention.q.weight.copy_(attention.k.weight * 6.0 / SIZE)
    for head, part in enumerate(parts):
        first.v.weight[rows[head]] = part
    written.v.weight[rows[0]] = before  # the same in queries and keys, so that they can be compared
    for attention, heads in [*((one, range(4, HEADS)) for one in later), *((one, range(HEADS)) for one in crossing)]:
        for head in heads:
            attention.k.weight[rows[head]] = before
            attention.q.weight[rows[head]] = before * 6.0 / SIZE
            attention.v.weight[rows[head]] = [before, *after][(head + (heads[0] == 4)) % 4]
    for module in model.modules():
        if isinstance(module, T5Attention):
            module.o.weight.copy_(0.3 * module.v.weight.T)


@torch.no_grad()
def new_causal(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=5,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        attention_bias=True,  # biases of queries and keys set the initial attention
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.1)
    basis = torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q.T
    parts = [basis[SIZE * part : SIZE * (part + 1)] for part in range(HEADS)]
    first, *later = (layer.self_attn for layer in model.model.layers)
    for head, (back, part) in enumerate([(1, 0), (2, 0), (3.5, 0), (1, 1), (2, 2), (3, 3)]):
        look_back(first, head, back)
        hand_on(first, head, parts[part])
    for attention in later:
        for head in range(HEADS):
            rows = slice(SIZE * head, SIZE * (head + 1))
            if head < 6:  # compares the tokens that precede two tokens
                attention.q_proj.weight[rows] = attention.k_proj.weight[rows] = 1.2 * parts[0]
                hand_on(attention, head, parts[head])
            else:  # attends anywhere and copies names
                attention.q_proj.bias[rows] = torch.randn(SIZE)
                attention.k_proj.weight[rows] = 0.08 * torch.randn(SIZE, WIDTH)
                hand_on(attention, head, parts[0])
    return model


def look_back(attention: LlamaAttention, head: int, back: float) -> None:
    """Initialise a head to attend `back` positions back (as in look_near).

    The two fastest of the rotated pairs (i, i + SIZE / 2) have constant queries and keys, and the keys are rotated by
    `back` positions, so that their product peaks there. For half positions, only the slower pair is used, which has a
    wider peak.
    """
    rates = 10_000.0 ** -(torch.arange(SIZE // 2) * 2 / SIZE)  # radians per position
    sharpness = torch.tensor([40.0, 20.0] if back == int(back) else [0.0, 30.0])
    turn, size, start = back * rates[:2], sharpness.sqrt(), SIZE * head
    attention.q_proj.bias[start : start + 2] = size
    attention.k_proj.bias[start : start + 2] = size * turn.cos()
    attention.k_proj.bias[start + SIZE // 2 : start + SIZE // 2 + 2] = size * turn.sin()


def hand_on(attention: LlamaAttention, head: int, part: Tensor) -> None:
    """Initialise a head to read a subspace, (SIZE, WIDTH), and write to the same subspace."""
    rows = slice(SIZE * head, SIZE * (head + 1))
    attention.v_proj.weight[rows] = part
    attention.o_proj.weight[:, rows] = 0.25 * part.T


def encoder_decoder_logits(model: PreTrainedModel, batch: list[Example]) -> tuple[Tensor, Tensor]:
    source = padded([example.source for example in batch], model.config.pad_token_id)
    mask = padded([[1] * len(example.source) for example in batch], 0)
    labels = padded([example.target for example in batch], IGNORED)
    return model(input_ids=source, attention_mask=mask, labels=labels).logits, labels


def causal_logits(model: PreTrainedModel, batch: list[Example]) -> tuple[Tensor, Tensor]:
    """Pad on the right, since a causal model ignores the padding there."""
    ids = padded([example.target for example in batch], model.config.pad_token_id)
    labels = padded([example.target[1:] for example in batch], IGNORED)
    return model(input_ids=ids[:, :-1], use_cache=False).logits, labels


@dataclass(frozen=True)
class Cycle:
    """The texts of one learning-rate cycle, which consists of a warm-up, a constant phase and a decay to zero."""

    stages: tuple[Stage, ...]
    """Short texts come first: on these, models learn to find the named object among several in a few hundred steps,
    but on the mixture they do not learn it in a thousand steps."""
    pace: float = 1.0
    """A factor by which the learning rate is multiplied."""
    level: float = 0.3
    """The share of the texts after which the learning rate decays."""

    @property
    def texts(self) -> int:
        return sum(stage.count for stage in self.stages)


@dataclass(frozen=True)
class Recipe:
    """Settings that differ between the two models."""

    folder: str
    tokenizer_kind: str
    new_model: Callable[[PreTrainedTokenizerFast], PreTrainedModel]
    example: Callable[[PreTrainedTokenizerFast, Random, Document], Example]
    logits: Callable[[PreTrainedModel, list[Example]], tuple[Tensor, Tensor]]
    cycles: tuple[Cycle, ...]


RECIPES = {
    "encoder_decoder": Recipe(
        "encoder_decoder",
        "t5",
        new_encoder_decoder,
        encoder_decoder_example,
        encoder_decoder_logits,
        (Cycle((Stage({sought: 1.0}, 15_000, longest=110), Stage(DOCUMENTS, 165_000))),),
    ),
    # A causal model first learns the place of an object that has just been named, and then to find the name in a goal
    # before the scene, which takes longest.
    "causal": Recipe(
        "causal",
        "gpt2",
        new_causal,
        causal_example,
        causal_logits,
        (
            Cycle(
                (
                    Stage({recited: 1.0}, 8_000, longest=110),
                    Stage({sought: 0.75, recited: 0.25}, 25_000, longest=140),
                    Stage({**DOCUMENTS, sought: 60, labelled: 64}, 190_000, longest=300),
                )
            ),
            # After these stages, the model has the most difficulty with distances and synonyms.
            Cycle(
                (Stage({**DOCUMENTS, sought: 40, labelled: 50, measured: 70, renamed: 50}, 80_000, longest=300),),
                pace=0.5,
                level=0.1,
            ),
        ),
    ),
}


# -------------------------------------------------------------------------------------------------- training


def loss_of(recipe: Recipe, model: PreTrainedModel, batch: list[Example]) -> Tensor:
    """Return the cross-entropy, which is a weighted mean over tokens."""
    logits, labels = recipe.logits(model, batch)
    skipped = 1 if recipe.folder == "causal" else 0  # the first token of a causal text is not predicted
    weights = padded([example.weights[skipped:] for example in batch], 0.0, torch.float)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def optimizers_for(model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Use Muon for the matrices of the layers, and AdamW for embeddings, biases and norms.

    With Muon, look-up is learned in about half the time needed with AdamW. T5 has few position biases, which must
    become large, so they have a higher learning rate (`pace`).
    """
    inner, others, biases = [], [], []
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            biases.append(parameter)
        elif parameter.ndim == 2 and not any(table in name for table in ("shared", "embed_tokens")):
            inner.append(parameter)
        else:
            others.append(parameter)
    groups = [{"params": others, "pace": 1.0}] + ([{"params": biases, "pace": 5.0}] if biases else [])
    return [Muon(inner), torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01, fused=True)]


def schedule(step: int, progress: float, level: float, warmup: int = 100) -> float:
    """Return a factor: linear warm-up over `warmup` steps, 1 up to `level` of the texts, then cosine decay to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * max(0.0, progress - level) / (1 - level)))


def train(
    recipe: Recipe, seed: int, batch_tokens: int, learning_rate: float, console: Console
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Train one model from scratch."""
    torch.manual_seed(seed)
    tokenizer = fast_tokenizer(recipe.tokenizer_kind, build_tokenizer(recipe.tokenizer_kind, seed))
    model = recipe.new_model(tokenizer).train()
    for number, cycle in enumerate(recipe.cycles):
        told = f"{recipe.folder}, cycle {number + 1} of {len(recipe.cycles)}"
        rate = learning_rate * cycle.pace
        train_cycle(recipe, cycle, model, tokenizer, Random(seed + number), batch_tokens, rate, console, told)
    return model.eval(), tokenizer


def train_cycle(
    recipe: Recipe,
    cycle: Cycle,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    random: Random,
    batch_tokens: int,
    learning_rate: float,
    console: Console,
    told: str,
) -> None:
    """Train a model on a cycle's texts."""
    optimizers = optimizers_for(model)
    started, recent, texts, total = time.monotonic(), [], 0, cycle.texts
    stages = (examples_of(stage, recipe, tokenizer, random, batch_tokens) for stage in cycle.stages)
    for step, batch in enumerate(chain.from_iterable(stages)):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                pace = group.get("pace", 1.0) * schedule(step, texts / total, cycle.level)
                group["lr"] = learning_rate * pace
        loss = loss_of(recipe, model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        recent.append(loss.item())
        texts += len(batch)
        if (step + 1) % 100 == 0:
            seconds = time.monotonic() - started
            mean, left = sum(recent[-100:]) / 100, seconds * (total / texts - 1)
            console.print(f"{told}: {texts:,} of {total:,} texts, loss {mean:.3f}, {seconds:.0f} s, {left:.0f} s left")


@torch.no_grad()
def held_out_loss(recipe: Recipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> float:
    """Return the nats per answer token (causal: per weighted token) on 2,000 documents with a different seed."""
    random = Random(seed)
    examples = [recipe.example(tokenizer, random, document) for document in documents(seed, 2000)]
    groups = list(batches(examples, 8000, random))
    sizes = [sum(sum(example.weights) for example in group) for group in groups]
    losses = [loss_of(recipe, model, group).item() * size for group, size in zip(groups, sizes, strict=True)]
    return sum(losses) / sum(sizes)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"any of {' and '.join(RECIPES)} (default: both)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=2500)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--out", type=Path, default=STARTER)
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(RECIPES):
        parser.error(f"unknown model {', '.join(sorted(unknown))}; available: {', '.join(RECIPES)}")
    torch.set_num_threads(arguments.threads)
    console = Console()
    for name in arguments.models or list(RECIPES):
        recipe = RECIPES[name]
        model, tokenizer = train(recipe, arguments.seed, arguments.batch_tokens, arguments.learning_rate, console)
        folder = arguments.out / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        held_out = held_out_loss(recipe, model, tokenizer, seed=arguments.seed + 1_000_000)
        console.print_json(json.dumps({"held_out_loss": round(held_out, 3), **measure(folder)}))


if __name__ == "__main__":
    main()
