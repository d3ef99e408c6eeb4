"""What the starter models can do: look-up accuracy, what is readable from their state, held-out loss.

`python scripts/starter_probes.py FOLDER` prints the figures of a saved model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import torch
from starter_corpus import Scene, draw_absent, draw_goal, draw_thing, draw_walls
from starter_words import ENGLISH, FRENCH, Language
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def load(folder: Path) -> Loaded:
    """The model of a folder, ready for prompts of unlike lengths."""
    kind = (
        AutoModelForSeq2SeqLM
        if AutoConfig.from_pretrained(folder).is_encoder_decoder
        else AutoModelForCausalLM
    )
    return kind.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder, padding_side="left")


def probe_scene(random: Random, language: Language, count: int) -> Scene:
    """A scene of `count` things of the world, all with names of their own."""
    scene = Scene([], draw_walls(random), None)
    names = [(noun, color) for noun in language.nouns for color in language.colors]
    for name in random.sample(names, count):
        scene.things.append(draw_thing(random, language, name))
    return scene


def questions(language: Language, count: int, number: int, seed: int) -> tuple[list[str], list[str]]:
    """`Which way is X?` after unseen scenes of `count` things, with the answers."""
    random, prompts, answers = Random(f"probe {seed}"), [], []
    for _ in range(number):
        scene = probe_scene(random, language, count)
        thing = random.choice(scene.things)
        text = "".join(f"{sentence}, " for sentence in scene.sentences(language))
        question = language.questions["way"][0].format(x=language.name(thing, language.the))
        prompts.append(f"{language.scene_heads[0]} 0: {text}{question}")
        answers.append(language.way(thing))
    return prompts, answers


@torch.no_grad()
def lookup_accuracy(
    loaded: Loaded, language: Language, count: int, number: int = 500, seed: int = 7
) -> float:
    """Share of greedy answers that are right to the letter."""
    model, tokenizer = loaded
    prompts, answers = questions(language, count, number, seed)
    right = 0
    for start in range(0, number, 100):
        batch = tokenizer(prompts[start : start + 100], return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        out = model.generate(**batch, max_new_tokens=8, do_sample=False)
        if not model.config.is_encoder_decoder:
            out = out[:, batch["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(out, skip_special_tokens=True)
        # In texts with several questions a semicolon or a new line ends an answer; what follows is not judged.
        given = [text.replace("\n", ";").split(";")[0].strip() for text in texts]
        right += sum(text == answer for text, answer in zip(given, answers[start:], strict=False))
    return right / number


def policy_prompts(
    language: Language, counts: list[int], number: int, seed: int
) -> tuple[list[str], list[int]]:
    """Prompts as policies read them, over made-up scenes, and which way the goal's thing is (0 to 5)."""
    random, prompts, classes = Random(f"state {seed}"), [], []
    actions = ", ".join(group[0] for group in language.action_words)
    for _ in range(number):
        scene = probe_scene(random, language, random.choice(counts))
        thing = (
            random.choice(scene.things) if random.random() < 0.85 else draw_absent(random, language, scene)
        )
        seen = thing in scene.things
        goal = draw_goal(random, language, thing)
        views = "".join(f"{sentence}, " for sentence in scene.sentences(language))
        prompts.append(
            f"{language.list_heads[4 if language is ENGLISH else 3]}: {actions} \n {language.goal_heads[0]}: {goal}"
            f" \n Observation 0: {views}\n Action 0: "
        )
        side = (thing.side > 0) - (thing.side < 0)
        # ahead; left; right; left and ahead; right and ahead; not in view
        classes.append(5 if not seen else 0 if side == 0 else (1 if side < 0 else 2) + 2 * (thing.ahead > 0))
    return prompts, classes


@torch.no_grad()
def states(loaded: Loaded, prompts: list[str]) -> Tensor:
    """The hidden state that scores a candidate's first token: (prompts, width)."""
    model, tokenizer = loaded
    rows = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        if model.config.is_encoder_decoder:
            start = torch.tensor([[model.config.decoder_start_token_id]])
            out = model(input_ids=ids, decoder_input_ids=start, output_hidden_states=True)
            rows.append(out.decoder_hidden_states[-1][0, -1])
        else:
            rows.append(model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, -1])
    return torch.stack(rows)


def linear_readout(loaded: Loaded, language: Language, counts: list[int], fitted: int = 1200) -> float:
    """How well a linear map of that state, fitted on 1,200 prompts, tells which way the goal's thing is."""
    prompts, classes = policy_prompts(language, counts, fitted + 400, seed=3)
    inputs, targets = states(loaded, prompts), torch.tensor(classes)
    inputs = (inputs - inputs[:fitted].mean(0)) / inputs[:fitted].std(0)
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
    wanted = torch.nn.functional.one_hot(targets[:fitted], 6).float()
    ridge = 10.0 * torch.eye(inputs.shape[1])
    weights = torch.linalg.solve(inputs[:fitted].T @ inputs[:fitted] + ridge, inputs[:fitted].T @ wanted)
    return ((inputs[fitted:] @ weights).argmax(1) == targets[fitted:]).float().mean().item()


def measure(folder: Path) -> dict[str, float]:
    """All figures of a saved model."""
    loaded = load(folder)
    figures: dict[str, float] = {"parameters": sum(parameter.numel() for parameter in loaded[0].parameters())}
    figures["megabytes"] = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    for name, language in (("english", ENGLISH), ("french", FRENCH)):
        for count in (1, 4, 8):
            figures[f"lookup_{name}_{count}"] = lookup_accuracy(loaded, language, count)
        figures[f"readout_{name}_1"] = linear_readout(loaded, language, [1])
        figures[f"readout_{name}_4_to_9"] = linear_readout(loaded, language, [4, 5, 6, 7, 8, 9])
    return {key: round(value, 3) for key, value in figures.items()}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=2))
