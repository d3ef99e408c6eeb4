"""The paths that a run on a GPU takes, each as small as it can be.

A path is played once on the CPU and once on the device. It gives back what came of it, by name: figures and tensors,
which are to be the same on both.
"""

import collections
import contextlib
import functools
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import torch
from rich.console import Console
from safetensors.torch import load_file
from scripts.combinations import PAID, Combination, config_of, learners, rewarded, verdict
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree

from groundling.config.schema import Config
from groundling.envs.observation import TextObservation
from groundling.evaluation.evaluate import evaluate
from groundling.evaluation.target import find
from groundling.judges.asking.judge import Request, judges
from groundling.judges.asking.questions import Question
from groundling.judges.reward_models import distill as distilling
from groundling.judges.reward_models import load_reward_model, reward_models
from groundling.judges.reward_models.training_pairs import TrainingPairs
from groundling.lm import LanguageModel
from groundling.lm.load.model import load_tokenizer
from groundling.lm.load.sources import Source
from groundling.lm.write import steps
from groundling.policies.action_generating import ActionGeneratingPolicy
from groundling.policies.text_states import Sequences, read_states
from groundling.policies.texts import TokenPrompt
from groundling.policies.token import TokenPolicy
from groundling.rewards import measures
from groundling.training.progress import TrainingProgress
from groundling.training.tracking import TIME_KEYS, read_metrics
from groundling.training.train import train
from groundling.training.trainer import Trainer
from tests.lm.tiny import tiny_config, tiny_model
from tests.rehearsal import materials
from tests.rehearsal.events import phase

Outcome = Mapping[str, Tensor | float]
DRAWN = "drawn by the device"
"""Begins the names of what a GPU draws from a generator of its own."""
UNITS: collections.Counter[str] = collections.Counter()
"""How often each phase of a path happens, in steps, tokens or gradient steps; counted as it is played."""


class Played(Protocol):
    """Plays a path on a device, in an empty folder, and tells what came of it."""

    def __call__(self, device: str, folder: Path) -> Outcome: ...


HAS_NETHACK = find_spec("nle") is not None
_CONSOLE = Console(quiet=True)


def settings(one: Combination) -> Config:
    """A combination's run, with the smallest models."""
    clones = one.clones and one.world.startswith("text")
    encodes = one.world == "text"  # an encoder-decoder there, and elsewhere a causal model
    model = materials.model("starter" if encodes else "starter-causal")
    config = config_of(one, materials.distilled(), str(model), str(materials.dataset(one.world)) if clones else "")
    if encodes and config.model.path:
        config.model.attention = "sdpa"  # which accelerators take; CPUs something else
    if "learning_rate" in config.algorithm.args:
        # Adam makes whole steps of gradients that are nothing but rounding.
        config.algorithm.args["learning_rate"] = 1e-4
    return config


def combinations() -> Iterator[Combination]:
    """All worlds, policies and algorithms that train together, and all rewards."""
    for one in dict.fromkeys([*learners(), *rewarded()]):
        if one.world == "NetHack" and not HAS_NETHACK:
            continue
        if verdict(config_of(one, materials.distilled())) is None:
            yield one


def trained(config: Config, device: str, folder: Path, updates: int = 2) -> Outcome:
    """What updates make of a run's figures and weights."""
    run = Trainer(config.model_copy(update={"device": device}), folder, warn=_fail)
    with _told_apart(run):
        progress = TrainingProgress(_CONSOLE, config.training.steps, 0)
        rows = [run.update(progress) for _ in range(updates)]
        run.collector.close()
    return _figures(rows) | _held(dict(run.policy.named_parameters()))


def whole_run(config: Config, device: str, folder: Path) -> Outcome:
    """What is left of a run that is stopped at a checkpoint and resumed, and of its evaluation."""
    steps = config.world.num_rows * config.world.steps_per_row
    for updates in (1, 2):
        training = config.training.model_copy(update={"steps": updates * steps, "checkpoint_every": 1})
        evaluation = config.evaluation.model_copy(update={"episodes": 2, "baselines": ["zero-shot"]})
        parts = {"device": device, "training": training, "evaluation": evaluation, "run_dir": str(folder / "run")}
        with phase("run with checkpoints"):
            UNITS["run with checkpoints"] += 1
            assert train(config.model_copy(update={**parts}), _CONSOLE, _fail)
    target = find(str(folder / "run"), [f"device={device}"], _fail)
    with phase("evaluation"):
        played = evaluate(target, next(iter(target.world.suites)), 2, warn=_fail)
    UNITS["evaluation"] += 2
    last = max((folder / "run" / "checkpoints").iterdir())
    return {
        **_figures(read_metrics(folder / "run")),
        **{
            f"{path.name}:{name}": tensor
            for path in last.glob("*.safetensors")
            for name, tensor in load_file(path).items()
            if not name.startswith("cuda.")  # the state of a GPU's own generator
        },
        **{f"{agent}.{name}": figure.value for agent, one in played.items() for name, figure in one.figures().items()},
    }


def variants() -> Iterator[tuple[str, Config]]:
    """Runs with what combinations leave out: references, adapters, checkpointed gradients, filters, masks."""
    reading = Combination("text", "action_scoring", "ppo", PAID)
    writing = Combination("writing", "token", "ppo", "metric")
    lora = {"r": 2, "target_modules": "all-linear"}
    for one in (reading, writing):
        config = settings(one)
        config.algorithm.args |= {"kl_coefficient": 0.1}
        config.model.lora = dict(lora)
        yield f"LoRA and a KL penalty, {one.world}", config
        config = settings(one)
        config.algorithm.args |= {"kl_coefficient": 0.1, "kl_target": 0.1, "normalize_rewards": True}
        config.model.gradient_checkpointing = True
        yield f"checkpointed gradients and a reference, {one.world}", config
    config = settings(writing)
    config.policy.args = {"value": "separate", "generation": {"top_k": 50, "temperature": 0.7, "min_length": 8}}
    yield "filters, separate values", config
    config = settings(writing)
    config.policy.args = {"value": "lora", "value_lora": dict(lora), "filtered_log_probs": False}
    yield "values by an adapter", config
    for algorithm, mask in (("nlpo", "learned_top_k"), ("ppo", "topk")):
        config = settings(writing.model_copy(update={"algorithm": algorithm}))
        config.policy.args |= {"mask_type": mask, "top_mask": 20}
        config.policy.args.pop("min_tokens_to_keep", None)
        yield f"{algorithm.upper()} under the mask {mask}", config
    if HAS_NETHACK:
        config = settings(Combination("NetHack", "nethack", "appo", PAID))
        config.world.ahead = True
        config.policy.args["core"] = "lstm"
        yield "NetHack ahead, LSTM", config
    config = settings(reading)
    config.world.bootstrap_truncated = True
    yield "bootstrapped time-outs", config
    config = settings(reading)
    config.policy.args["prompt"] = ["glam", "brief"]
    config.algorithm.args |= {"contrast_coefficient": 0.5, "contrast_prompts": ["glam", "brief", "tagged"]}
    yield "forms of a prompt, contrast", config
    for policy in ("action_scoring", "action_writing"):
        config = conversing(policy, "ppo")
        config.algorithm.args |= {"kl_coefficient": 0.1}
        config.model.lora = dict(lora)
        yield f"conversations, {policy}", config
    config = conversing("action_generating", "ppo")
    config.policy.args |= {"thought_ends": "So", "max_thought_tokens": 3, "guided": False}
    config.algorithm.args |= {"kl_coefficient": 0.1, "credit": "poad"}
    yield "conversations, thoughts", config
    config = conversing("action_scoring", "grpo")
    config.world.group_size = 2
    yield "conversations, groups of episodes", config


def conversing(policy: str, algorithm: str) -> Config:
    """A run whose policy reads whole episodes as conversations."""
    config = settings(Combination("text", policy, algorithm, PAID))
    config.model.path = str(materials.model("starter-causal"))
    config.world.history = None
    config.policy.args |= {"prompt": "conversation"}
    return config


def whole_runs() -> Iterator[tuple[str, Config]]:
    """Runs that are stopped, resumed and evaluated."""
    for one in (
        Combination("text", "action_scoring", "ppo", "distilled judge"),
        Combination("writing", "token", "nlpo", "metric"),
        Combination("NetHack", "nethack", "appo", PAID),
    ):
        if one.world == "NetHack" and not HAS_NETHACK:
            continue
        config = settings(one)
        yield f"stopped, resumed, evaluated: {one.world}", config
    yield "stopped, resumed, evaluated: conversations", conversing("action_scoring", "ppo")


def scored(device: str, folder: Path, starter: str) -> Outcome:
    """What a language model says of candidates, and writes of itself.

    What it draws comes from PyTorch's generator of the device, and a GPU's is another one than the CPU's.
    """
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
    """What families read after what is remembered of a prompt, or line by line; and texts to one prompt in one row."""
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
    """Texts of as many tokens as there can be, with values and a reference, and the same token by token."""
    lm = LanguageModel.from_pretrained(materials.model("starter-causal"), device=device)
    options: dict[str, Any] = {} if mask is None else {"mask_type": mask, "top_mask": 0.9}
    settings = {"terminate_on_eos": True, "min_new_tokens": num_tokens, **generation}
    reference = LanguageModel.from_pretrained(materials.model("starter-causal"), device=device)
    policy = TokenPolicy(lm, reference, generation=settings, **options)
    torch.nn.init.ones_(policy.value_head.layers[-1].weight)  # type: ignore[union-attr]
    uniforms = torch.rand(3, num_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prompts = [TokenPrompt(ids) for ids in ((5, 6, 7), (8, 9), (5, 6, 7))]
    policy.write(prompts[:1], uniforms[:1, :1])  # tries whether the model can be stepped, once
    with phase("decoding"):
        writing = policy.write(prompts, uniforms)
    UNITS["decoding"] += num_tokens
    token_env = [
        {
            "prompt_ids": [5, 6, 7],
            "prompt_mask": torch.ones(3, dtype=torch.long).numpy(),
            "context_ids": [0, 0],
            "context_mask": torch.zeros(2, dtype=torch.long).numpy(),
        }
    ]
    action = policy.act(token_env, generator=torch.Generator().manual_seed(0))
    return {
        "actions": writing.actions,
        "log_probs": writing.log_probs,
        "raw": writing.raw_log_probs,
        "values": writing.values,
        "kl": writing.kl,
        "first token": action.actions,
        "its value": policy.values(token_env),
    }


def ended(device: str, folder: Path, starter: str) -> Outcome:
    """Texts of which most end early, so that the others go on alone."""
    lm = LanguageModel.from_pretrained(materials.model(starter), device=device)
    lm.model.generation_config.eos_token_id = list(range(100, 200))
    policy = TokenPolicy(lm)
    uniforms = torch.rand(12, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with mock.patch.object(steps.Texts, "keep", autospec=True, side_effect=steps.Texts.keep) as keep:
        writing = policy.write([TokenPrompt((5, 6, 7))] * 12, uniforms)
    assert keep.called, "all texts went on to the end, or ended together"
    return {"actions": writing.actions, "log_probs": writing.log_probs, "mask": writing.mask}


def spread(device: str, folder: Path, starter: str) -> Outcome:
    """What policies make of a language model that ends on another device than it begins on, as by model.device_map."""
    # What it remembers would lie on several devices, so that Transformers' loop writes.
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
    """A model whose last norms lie on the CPU, and all else there; its parts take what they are given to where they
    lie, and it gives logits where it was asked, as accelerate has them do.
    """
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
    """A reward model that learns from preferences, is saved, loaded and asked."""
    language = kind == "language_model"
    args = {"path": str(materials.model("starter-causal")), "hidden_sizes": [8]} if language else {}
    torch.manual_seed(0)
    model = reward_models.create(kind, **args).to(device)
    captions = ["You see a newt.", "You kill the newt!", "It's a wall", ""]
    indices = torch.tensor([[[0], [1]], [[2], [1]], [[3], [1]], [[0], [2]]])
    pairs = TrainingPairs(captions, indices, torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.5, 0.5]]))
    figures = {}
    if kind == "table":
        model(captions)  # of an empty one
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
    """What a language model answers as a judge."""
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
    """A metric that reads with a model of its own."""
    metric = measures.create(
        "causal_perplexity", lm=str(materials.model("starter-causal")), device=device, stride=8, width=16
    )
    results = metric.measure(PROMPTS, ["a b"] * 2, [["a sentence of some words, and more of them"]] * 2, None)
    return {name: result.corpus for name, result in results.items()}


def in_bfloat16(play: Played) -> Played:
    """The path as on a GPU that computes bfloat16, in which a language model's body goes through autocast."""

    def played(device: str, folder: Path) -> Outcome:
        if device == "cpu":
            cast = functools.partialmethod(_autocast_on_cpu)
            computing = mock.patch.object(LanguageModel, "autocast", cast)
        else:
            computing = saying_of_bfloat16(device, True)
        with computing:
            return play(device, folder)

    return played


@contextlib.contextmanager
def saying_of_bfloat16(device: str, fast: bool) -> Iterator[None]:
    """Within this context the device says that it computes bfloat16 fast, or that it does not."""
    with mock.patch.object(torch.get_device_module(device), "is_bf16_supported", lambda: fast):
        yield


def _autocast_on_cpu(lm: LanguageModel) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"{row['update']}:{name}": float(value)
        for row in rows
        for name, value in row.items()
        if name not in TIME_KEYS and isinstance(value, int | float)
    }


def _held(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: getattr(tensor, "held", tensor).detach().clone() for name, tensor in tensors.items()}


def _fail(message: str) -> None:
    raise AssertionError(message)


@contextlib.contextmanager
def _told_apart(run: Trainer) -> Iterator[None]:
    """Events belong to what the run is at: it collects, or learns."""
    collect, update = run.collector.collect, run.algorithm.update
    world = run.config.world

    def collecting(*args: Any, **options: Any) -> Any:
        with phase("collection"):
            rollout, episodes = collect(*args, **options)
        if rollout.tokens is not None:  # written one after the other, in all envs together
            UNITS["collection"] += int(rollout.tokens.ids.any(1).sum())
        elif rollout.mask is not None:
            UNITS["collection"] += int(rollout.mask.sum(0).max())
        else:
            UNITS["collection"] += world.steps_per_row
        return rollout, episodes

    def learning(*args: Any, **options: Any) -> Any:
        with phase("learning"):
            return update(*args, **options)

    hook = register_optimizer_step_post_hook(_count_step)
    with mock.patch.object(run.collector, "collect", collecting), mock.patch.object(run.algorithm, "update", learning):
        yield
    hook.remove()


def _count_step(*_: Any) -> None:
    UNITS["learning"] += 1
