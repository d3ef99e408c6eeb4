"""Paths of language models, reward models, judges and metrics on a GPU, as small as possible."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree

from groundling.envs.text_env import TextObservation
from groundling.judges.asking.judge import Request, judges
from groundling.judges.asking.questions import Question
from groundling.judges.reward_models import distill as distilling
from groundling.judges.reward_models import load_reward_model, reward_models
from groundling.judges.reward_models.distill import TrainingPairs
from groundling.lm import LanguageModel
from groundling.lm.load.model import load_tokenizer
from groundling.lm.load.model_files import Source
from groundling.lm.write import steps
from groundling.policies.action_generating import ActionGeneratingPolicy
from groundling.policies.text_states import Sequences, TokenPrompt, read_states
from groundling.policies.token import TokenPolicy
from groundling.rewards import measures
from tests.lm.tiny import tiny_config, tiny_model
from tests.rehearsal import materials
from tests.rehearsal.events import phase
from tests.rehearsal.paths import DRAWN, UNITS, Outcome, Played


def scored(device: str, folder: Path, starter: str) -> Outcome:
    """Score candidates and generate texts; a GPU samples from its own generator."""
    lm = LanguageModel.from_pretrained(materials.model(starter), device=device, attention="sdpa")
    torch.manual_seed(0)
    beams = lm.generate(PROMPTS, num_beams=2, max_new_tokens=4)
    drawn = lm.generate(PROMPTS, do_sample=True, top_k=20, max_new_tokens=4)
    return {
        "sum": torch.cat(lm.score(PROMPTS, ACTIONS, normalize="token")),
        "glam": torch.cat(lm.score(PROMPTS, ACTIONS, compat="glam")),
        "guided": lm.score_guided(PROMPTS, [ACTIONS, ACTIONS[:1]]).log_probs,
        "state": lm.encode(PROMPTS),
        **{f"beam {i}": one.token_log_probs for i, one in enumerate(beams)},
        **{f"{DRAWN} {i}": one.raw_token_log_probs for i, one in enumerate(drawn)},
        **{f"{DRAWN}, tokens of {i}": one.token_ids for i, one in enumerate(drawn)},
    }


def of_family(device: str, folder: Path, family: str) -> Outcome:
    """Score with cached prompts or line by line, and read texts for one prompt in one row, for several families."""
    tokenizer = load_tokenizer(Source(str(materials.model("starter-causal"))))
    lm = LanguageModel(tiny_model(tiny_config(family, vocab_size=len(tokenizer))).to(device), tokenizer)
    scores = torch.cat(lm.score(PROMPTS, ACTIONS))
    texts = Sequences([range(5, 25)] * 3, [[30], [30, 31], [32]], [1, 2, 1])
    states = read_states(lm, texts)
    (scores.sum() + states.sum()).backward()
    gradients = {name: p.grad for name, p in lm.model.named_parameters() if p.grad is not None}
    return {"scores": scores, "states": states, **gradients}


PROMPTS = ["Goal of the agent: go to the red ball.", "You see a wall."]
ACTIONS = ["turn left", "go forward", "turn right"]


def decoded(device: str, folder: Path, mask: str | None = None, num_tokens: int = 24, **generation: Any) -> Outcome:
    """Generate texts of full length, with values and a reference."""
    lm = LanguageModel.from_pretrained(materials.model("starter-causal"), device=device)
    options: dict[str, Any] = {} if mask is None else {"mask_type": mask, "top_mask": 0.9}
    settings = {"terminate_on_eos": True, "min_new_tokens": num_tokens, **generation}
    reference = LanguageModel.from_pretrained(materials.model("starter-causal"), device=device)
    policy = TokenPolicy(lm, reference, generation=settings, **options)
    torch.nn.init.ones_(policy.value_head.layers[-1].weight)  # type: ignore[union-attr]
    uniforms = torch.rand(3, num_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prompts = [TokenPrompt(ids) for ids in ((5, 6, 7), (8, 9), (5, 6, 7))]
    policy.write(prompts[:1], uniforms[:1, :1])  # checks once whether the model can be stepped
    with phase("decoding"):
        writing = policy.write(prompts, uniforms)
    UNITS["decoding"] += num_tokens
    return {
        "actions": writing.actions,
        "log_probs": writing.log_probs,
        "raw": writing.raw_log_probs,
        "values": writing.values,
        "kl": writing.kl,
    }


def ended(device: str, folder: Path, starter: str) -> Outcome:
    """Generate texts, most of which end early."""
    lm = LanguageModel.from_pretrained(materials.model(starter), device=device)
    lm.model.generation_config.eos_token_id = list(range(100, 200))
    policy = TokenPolicy(lm)
    uniforms = torch.rand(12, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with mock.patch.object(steps.Texts, "keep", autospec=True, side_effect=steps.Texts.keep) as keep:
        writing = policy.write([TokenPrompt((5, 6, 7))] * 12, uniforms)
    assert keep.called, "no text ended before the others"
    return {"actions": writing.actions, "log_probs": writing.log_probs, "mask": writing.mask}


def spread(device: str, folder: Path, starter: str) -> Outcome:
    """Use policies whose language model is on two devices, as with model.device_map."""
    # The cache would be on several devices, so Transformers' loop generates.
    with mock.patch.object(steps.Stepper, "_is_exact", lambda self: False):
        lm, reference = _beginning_on(device, starter), _beginning_on(device, starter)
        torch.manual_seed(0)
        writer = TokenPolicy(lm, reference, "shared", (), mask_type="learned_top_k", top_mask=20)
        uniforms = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        writing = writer.write([TokenPrompt(ids) for ids in ((5, 6, 7), (8, 9), (5, 6, 7))], uniforms)
        texts = writer.evaluate(writing.observations, writing.actions.T)
        agent = ActionGeneratingPolicy(lm, reference, "brief", value_hidden_sizes=(8,), thought_ends="So")
        seen = [TextObservation(goal, (("You see a key",),), (), tuple(ACTIONS), {}) for goal in ("go", "wait")]
        action = agent.act(seen, generator=torch.Generator().manual_seed(0))
        assert action.turns is not None and action.tokens is not None
        turns = agent.evaluate(action.turns, action.tokens.ids)
        of_reference = agent.reference_log_probs(action.turns, action.tokens.ids)
        for given in (texts.log_probs, texts.values, turns.log_probs, turns.values, of_reference):
            assert given is not None and given.device == lm.device
        return {
            "texts": writing.actions,
            "their log_probs": texts.log_probs,
            "as they were drawn": writing.log_probs,
            "their values": texts.values,
            "their KL": writing.kl,
            "turns": action.tokens.ids,
            "their parts": turns.log_probs - of_reference,
            "their entropies": turns.entropies,
            "values of turns": turns.values,
        }


def _beginning_on(device: str, starter: str) -> LanguageModel:
    """Load a model whose last norms are on the CPU; modules move their inputs, as with accelerate."""
    lm = LanguageModel.from_pretrained(materials.model(starter), device=device, attention="sdpa")
    for part in (lm.model.get_encoder(), lm.backbone.body) if lm.is_encoder_decoder else (lm.backbone.body,):
        (part.final_layer_norm if lm.is_encoder_decoder else part.norm).to("cpu")
    for module in lm.model.modules():
        if len({weight.device for weight in module.parameters()}) == 1:
            module.register_forward_pre_hook(_take, with_kwargs=True)
    lm.model.register_forward_hook(_bring_back, with_kwargs=True)
    return lm


def _take(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    device = next(module.parameters()).device
    return _pytree.tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, (args, kwargs))


def _bring_back(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    output.logits = output.logits.to(next(x for x in kwargs.values() if isinstance(x, Tensor)).device)
    return output


def distilled(device: str, folder: Path, kind: str) -> Outcome:
    """Train a reward model on preferences, save, load and evaluate it."""
    language = kind == "language_model"
    args = {"path": str(materials.model("starter-causal")), "hidden_sizes": [8]} if language else {}
    torch.manual_seed(0)
    model = reward_models.create(kind, **args).to(device)
    captions = ["You see a newt.", "You kill the newt!", "It's a wall", ""]
    indices = torch.tensor([[[0], [1]], [[2], [1]], [[3], [1]], [[0], [2]]])
    pairs = TrainingPairs(captions, indices, torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.5, 0.5]]))
    figures = {}
    if kind == "table":
        model(captions)  # an empty caption
        model.fit(pairs)
    else:
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        generator = torch.Generator().manual_seed(0)
        with phase("distillation"):
            figures["loss"] = distilling.train_epoch(model, optimizer, pairs, 2, generator)
        UNITS["distillation"] += 2
    figures |= distilling.evaluate(model, pairs)
    distilling.normalize(model, pairs)
    model.save(folder / "model", {})
    loaded = load_reward_model(folder / "model", device)
    assert loaded(captions).device == loaded.device, f"{kind} answers from another device than its own"
    return {**figures, "rewards": loaded.rewards(captions), "again": loaded(captions)}


def judged(device: str, folder: Path, answer: str) -> Outcome:
    """Use a language model as a judge."""
    question = Question(world="text")
    model = str(materials.model("starter-causal"))
    judge = judges.create("transformers", model=model, answer=answer, device=device, max_tokens=8, temperature=0)
    replies: list[Any] = []
    requests = [
        Request(number, question.conversation(first, second, answer=answer), question)
        for number, (first, second) in enumerate([("a key", "a door"), ("a wall", "a ball")])
    ]
    judge.ask(requests, lambda request, reply: replies.append(reply))
    return {
        f"{number}.{name}": float(value)
        for number, reply in enumerate(replies)
        for name, value in enumerate(reply.probabilities or (sum(map(ord, reply.text)),))
    }


def measured(device: str, folder: Path) -> Outcome:
    """Compute a metric with its own model."""
    metric = measures.create(
        "causal_perplexity", lm=str(materials.model("starter-causal")), device=device, stride=8, width=16
    )
    results = metric.measure(PROMPTS, ["a b"] * 2, [["a sentence of some words, and more of them"]] * 2, None)
    return {name: result.corpus for name, result in results.items()}


def in_bfloat16(play: Played) -> Played:
    """Run a path with autocast to bfloat16."""

    def played(device: str, folder: Path) -> Outcome:
        if device == "cpu":
            computing = mock.patch.object(LanguageModel, "autocast", lambda lm: torch.autocast("cpu", torch.bfloat16))
        else:
            computing = saying_of_bfloat16(device, True)
        with computing:
            return play(device, folder)

    return played


@contextlib.contextmanager
def saying_of_bfloat16(device: str, fast: bool) -> Iterator[None]:
    """Make the device report whether bfloat16 is fast."""
    with mock.patch.object(torch.get_device_module(device), "is_bf16_supported", lambda: fast):
        yield
