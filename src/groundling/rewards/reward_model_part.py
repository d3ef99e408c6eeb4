"""Caption rewards from a reward model (Motif, arXiv 2310.00166), which may learn from a judge during the run (ONI)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.fields import ArgumentsOf, CommandLineOnly, Ge, MayChangeOnResume, TrainingOnly
from groundling.io.chat_server import check_address
from groundling.io.documents import SETTINGS, read_object
from groundling.judges.asking.judge import FigureJudge, Judge, judges
from groundling.judges.asking.questions import Question, find_subject
from groundling.judges.online.background import OnlineLearning
from groundling.judges.online.reward import OnlineReward, online_judge
from groundling.judges.reward_models import RewardModel, load_reward_model, reward_models
from groundling.judges.reward_models.reward_model import DESCRIPTION, Normalization
from groundling.registry import check_arguments, declarations, taken
from groundling.rewards.part import Part, RewardContext, RewardInputs, parts
from groundling.runtime.devices import find_device

MODEL = "model"  # Subfolder of the part's checkpoint folder, for a reward model trained online
_TABLE, _ANSWERS = "table.safetensors", "answers.safetensors"
_IDENTITY = Normalization(0.0, 1.0, ())


def asks_server(judge: str) -> bool:
    """Return True if a judge sends requests to a server that its arguments specify."""
    declared = declarations(judges.get(judge)) if judge in judges else {}
    return any(CommandLineOnly in metadata for metadata in declared.values())


@dataclass(kw_only=True)
class OnlineJudge:
    """A judge that is queried about new captions during training without delaying it (ONI, arXiv 2410.23022)."""

    judge: Annotated[str, CommandLineOnly.when(asks_server)]
    """A caption judge (see `groundling list judges`). Server judges can only be set on the command line."""
    args: Annotated[dict[str, Any], ArgumentsOf(judges, "judge")] = field(default_factory=dict)
    """Arguments of the judge, as in `groundling annotate --judge ID key=value`."""
    goal: str = ""
    """Goal by which captions are compared: one of the world's goals (in NetHack: defaultgoal, zeroknowledge, combat,
    gold, stairs) or a sentence. If empty, the world's first goal is used."""
    prompt: str = "default"  # Prompt for the question: default or, in NetHack, Motif's alternative "reworded"
    model: str | None = None
    """Reward model to train if the part has no path. If null, the world's default is used. The models motif (for
    NetHack's messages) and characters rank captions. The models table and classifier (for NetHack's messages) label
    captions, and need normalize=false and threshold_quantile=0."""
    learning: dict[str, Any] = field(default_factory=dict)
    """Arguments of `groundling.judges.online.background.OnlineLearning`: train_every, epochs, learning_rate, …"""

    @classmethod
    def of(cls, values: Any, path: str | None) -> "OnlineJudge":
        """Parse the settings of a part with the reward model ``path``; raise `ConfigError` if any are invalid."""
        if not isinstance(values, cls):
            check_arguments(cls, values, "online", "online.")
            if values.get("judge") is None:
                raise ConfigError("online needs a judge: set online.judge (`groundling list judges` lists them)")
            values = cls(**values)
        check_arguments(OnlineLearning, values.learning, "online.learning", "online.learning.")
        if asks_server(values.judge):
            # Reject an address with a secret, since it would be written to files.
            check_address(**{k: str(v) for k, v in taken(check_address, values.args).items()})
        check_arguments(judges.get(values.judge), values.args, f"judge {values.judge!r}")
        if values.model is not None and path is not None:
            raise ConfigError(f"online.model={values.model} has no effect with path={path}, the model to train")
        return values

    def refusal(self, world: str | None) -> str | None:
        """Return why the judge or model is incompatible with a world, or None; slow judges are not checked."""
        if world is not None and self.model is not None and _reads_messages(self.model):
            usual = find_subject(world).reward_model
            if not _reads_messages(usual):
                return f"online.model={self.model} supports only NetHack's messages: set online.model={usual}"
        try:
            question, kind = self._question(world), judges.get(self.judge)
            fast = isinstance(kind, type) and (issubclass(kind, FigureJudge) or getattr(kind, "effortless", False))
            return self._make().accepts(question) if fast else None
        except ConfigError as error:
            return str(error)

    def new_model(self, context: RewardContext) -> RewardModel:
        """Create the reward model to train, with initial weights that depend on the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(context.seed)
            return reward_models.create(self.model or self._question(context.world).subject.reward_model)

    def teach(self, model: RewardModel, context: RewardContext) -> OnlineReward:
        """Load the judge that ``model`` will learn from; raise `ConfigError` if there are several processes."""
        if context.processes.size > 1:
            raise ConfigError("an online judge needs a single process: each process would learn different rewards")
        judge = online_judge(self._make(), self._question(context.world))
        return OnlineReward(model, judge, OnlineLearning(**self.learning))

    def _question(self, world: str | None) -> Question:
        if world is None:
            raise ConfigError("judges do not support this kind of world: remove online")
        return Question(self.goal, self.prompt, world=world)

    def _make(self) -> Judge:
        judge = judges.create(self.judge, **self.args)
        if not isinstance(judge, Judge):
            raise ConfigError(f"online.judge={self.judge} cannot judge single captions: choose a different judge")
        return judge


def _reads_messages(kind: str) -> bool:
    return bool(getattr(reward_models.get(kind), "reads_messages", False))


class RewardTable:
    """A cache of ``model``'s rewards, keyed by the caption's content hash and cleared when the model changes."""

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self._version = model.version
        self._rewards: dict[int, float] = {}

    def __call__(self, ids: Tensor, read: Callable[[Sequence[int]], Sequence[str]]) -> Tensor:
        """Return the captions' rewards as float32 with the shape of their int64 ``ids``; both are on the CPU.
        ``read`` returns the captions at the given indices of the flattened ids; it is called only for new ids.
        """
        if self._version != self.model.version:
            self._version = self.model.version
            self._rewards.clear()
        flat = ids.flatten().tolist()
        new = {id: place for place, id in reversed(list(enumerate(flat))) if id not in self._rewards}
        if new:
            order = sorted(new)
            rewards = self.model.rewards(read([new[id] for id in order]))
            self._rewards |= zip(order, rewards.tolist(), strict=True)
        return torch.tensor([self._rewards[id] for id in flat], dtype=torch.float32).view(ids.shape)

    def state_dict(self) -> dict[str, Tensor]:
        """Return ascending ``ids`` int64 (n,), ``rewards`` float32 (n,), and the model's ``version`` int64 ()."""
        ids = torch.tensor(sorted(self._rewards), dtype=torch.int64)
        rewards = torch.tensor([self._rewards[id] for id in ids.tolist()], dtype=torch.float32)
        return {"ids": ids, "rewards": rewards, "version": torch.tensor(self._version)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned, unless the model has changed."""
        if int(state["version"]) == self.model.version:
            self._rewards = dict(zip(state["ids"].tolist(), state["rewards"].tolist(), strict=True))


@parts.register("reward_model")
@dataclass(kw_only=True)
class RewardModelPart(Part):
    """A reward model's output for captions, normalised, set to 0 below a quantile, and reduced for repetitions."""

    needs = frozenset({"captions"})

    path: Annotated[str | None, MayChangeOnResume] = None
    """Folder written by `groundling distill`; may change on resume. If null, the online judge trains a new model."""
    normalize: bool = True
    """Normalise the model's rewards to mean 0 and standard deviation 1 over its training captions."""
    threshold_quantile: float = 0.5
    """Rewards up to this quantile of the distinct training captions' rewards become 0. Must be between 0.05 and 0.95,
    or 0 for no threshold. (Motif's code does not accept 0.0, and its default of -0.5 is not a quantile.)"""
    count_exponent: Annotated[float, Ge(0)] = 3.0
    """The reward of the n-th occurrence of a caption in an episode is divided by n to this power."""
    online: Annotated[OnlineJudge | dict[str, Any] | None, TrainingOnly] = None
    """Settings of `OnlineJudge`, which trains the model during the run. If null, the model is fixed."""

    def __post_init__(self) -> None:
        if self.threshold_quantile != 0 and not 0.05 <= self.threshold_quantile <= 0.95:
            raise ConfigError(f"threshold_quantile must be 0 or between 0.05 and 0.95, got {self.threshold_quantile}")
        self._judge = None if self.online is None else OnlineJudge.of(self.online, self.path)
        self._table: RewardTable | None = None
        self._online: OnlineReward | None = None

    def accepts(self, world: WorldSpec) -> str | None:
        """Also check that the model was distilled from this kind of world, and that the judge is compatible."""
        if (reason := super().accepts(world)) is not None:
            return reason
        description = None if self.path is None else Path(self.path) / DESCRIPTION
        if description is not None and description.is_file():  # otherwise `check` raises the error
            try:
                distilled: str = read_object(description, SETTINGS)["about"].get("world", world.subject)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{description} cannot be read: {error!r}") from error
            if distilled != world.subject:
                return f"{self.path} was distilled from pairs recorded in {distilled!r}, not {world.subject!r}"
        return None if self._judge is None else self._judge.refusal(world.subject)

    def check(self) -> None:
        if self.path is None and self._judge is None:
            raise ConfigError(
                "no reward model is set: set path to a folder written by `groundling distill`, or set online.judge"
            )
        if self.path is not None and not (Path(self.path) / DESCRIPTION).is_file():
            load_reward_model(self.path)  # raises the error

    def check_normalization(self, normalization: Normalization | None) -> None:
        """Raise `ConfigError` if the options need normalisation statistics that the reward model does not have."""
        if normalization is None and (self.normalize or self.threshold_quantile):
            raise ConfigError("a reward model that returns labels needs normalize=false and threshold_quantile=0")

    def begin(self, context: RewardContext) -> None:
        device = find_device(context.device)
        if self.path is not None:
            model = load_reward_model(self.path, device)
        else:
            assert self._judge is not None
            model = self._judge.new_model(context).to(device).eval()
        self.use(model, None if self._judge is None else self._judge.teach(model, context))

    def use(self, model: RewardModel, online: OnlineReward | None = None) -> None:
        """Use the rewards of ``model``, which ``online`` trains; raise `ConfigError` if it lacks required statistics."""
        self._table, self._online = RewardTable(model), online
        self.check_normalization(model.normalization)

    def rewards(self, inputs: RewardInputs) -> Tensor:
        captions, table = inputs.judged or inputs.captions, self._table
        assert captions is not None and table is not None
        if self._online is not None:
            self._online.observe(captions.ids, captions.read, captions.goals, captions.contexts)
            self._online.update()  # the table detects the model's new version
        raw = table(captions.ids, captions.read)
        return inputs.spread(captions, self.transform(raw, captions.counts, table.model.normalization))

    def transform(self, rewards: Tensor, counts: Tensor, normalization: Normalization | None) -> Tensor:
        """Compute r̂ = (r - mean) / √variance;   r̂ · [r̂ > ε] / N(caption)^β   (section 3 and appendix of Motif).
        ε is a quantile of the model's rewards, normalised or not; ``counts`` is N, with the shape of ``rewards``.
        """
        self.check_normalization(normalization)
        spread = normalization or _IDENTITY
        threshold = spread.threshold(self.threshold_quantile) if self.threshold_quantile else -math.inf
        if self.normalize:
            rewards = (rewards - spread.mean) / math.sqrt(spread.variance)
        else:
            threshold = spread.mean + threshold * math.sqrt(spread.variance)
        kept = torch.where(rewards > threshold, rewards, 0.0)
        return kept / counts.to(kept) ** self.count_exponent

    def figures(self) -> dict[str, int]:
        return {} if self._online is None else self._online.figures()

    def save(self, folder: Path) -> None:
        assert self._table is not None
        save_file(self._table.state_dict(), folder / _TABLE)
        if self._online is not None:
            self._online.model.save(folder / MODEL)
            save_file(self._online.state_dict(), folder / _ANSWERS)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; raise `ConfigError` if it belongs to a different reward model."""
        assert self._table is not None
        if self._online is not None:
            model, saved = self._online.model, load_reward_model(folder / MODEL)
            if (saved.id, saved.args) != (model.id, model.args):
                raise ConfigError(
                    f"{folder} contains the reward model {saved.id} {saved.args}, but the run uses {model.id} "
                    f"{model.args}"
                )
            model.take_up(saved)
            self._online.load_state_dict(load_file(folder / _ANSWERS))
        table = load_file(folder / _TABLE)
        if self._online is None and not has_rewarded(self._table.model, folder):
            raise ConfigError(
                f"{self.path} is not the reward model that the run in {folder} used: restore that, or set a new run_dir"
            )
        self._table.load_state_dict(table)

    def close(self) -> None:
        if self._online is not None:
            self._online.close()


def has_rewarded(model: RewardModel, folder: Path) -> bool:
    """Return True if the part's checkpoint ``folder`` contains a table of this ``model``'s rewards."""
    try:
        with safe_open(folder / _TABLE, "pt") as table:
            version: Any = table.get_tensor("version").tolist()
    except (OSError, SafetensorError):
        return False
    return bool(version == model.version)
