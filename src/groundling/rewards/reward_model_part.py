"""What a reward model thinks of captions (Motif, arXiv 2310.00166), also one that a judge teaches meanwhile (ONI)."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundling.arguments import check_types
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.io.chat_server import check_address
from groundling.io.documents import SETTINGS, read_object
from groundling.judges.asking.judge import FigureJudge, Judge, judges
from groundling.judges.asking.questions import Question
from groundling.judges.asking.subjects import find_subject
from groundling.judges.online.questions import online_judge
from groundling.judges.online.reward import OnlineReward
from groundling.judges.online.training import OnlineLearning
from groundling.judges.reward_models import RewardModel, load_reward_model, reward_models
from groundling.judges.reward_models.reward_model import DESCRIPTION, Normalization
from groundling.registry import unknown
from groundling.rewards.part import Part, Surroundings, parts
from groundling.rewards.stretch import Stretch
from groundling.rewards.table import RewardTable
from groundling.runtime.devices import find_device

MODEL = "model"
"""Where the part's folder in a checkpoint holds a reward model that learns online."""
_TABLE, _ANSWERS = "table.safetensors", "answers.safetensors"
_IDENTITY = Normalization(0.0, 1.0, ())


@dataclass(kw_only=True)
class OnlineJudge:
    """A judge that is asked about new captions while training runs, which never waits (ONI, arXiv 2410.23022)."""

    judge: str
    """One of `groundling list judges` but those of figures."""
    args: dict[str, Any] = field(default_factory=dict)
    """Of the judge, as `groundling annotate --judge ID key=value` takes them; a server's base_url and api_key_env count
    only on the command line."""
    goal: str = ""
    """What the judge is asked about: one of its world's goals (in NetHack defaultgoal, zeroknowledge, combat, gold,
    stairs), or a sentence; empty: the world's first."""
    prompt: str = "default"
    """How it is asked: default, or in NetHack reworded, Motif's other version."""
    model: str | None = None
    """What learns where the part has no path: motif of NetHack's messages or characters of other captions (they rank
    captions; null: the one of these that suits the world), or table or, of NetHack's messages, classifier (labels: with
    normalize=false and threshold_quantile=0)."""
    learning: dict[str, Any] = field(default_factory=dict)
    """Arguments of `groundling.judges.online.training.OnlineLearning`: train_every, epochs, learning_rate, …"""


@parts.register("reward_model")
@dataclass(kw_only=True)
class RewardModelPart(Part):
    """What a reward model gives for captions, normalised, cut off below a quantile, and less for repetition."""

    needs = frozenset({"captions"})

    path: str | None = None
    """A folder that `groundling distill` wrote; null: a new model that the online judge teaches."""
    normalize: bool = True
    """Shift and scale the model's rewards to mean 0 and deviation 1 over its training captions."""
    threshold_quantile: float = 0.5
    """Rewards up to this quantile of the distinct training captions' become 0: 0.05 to 0.95; 0: none do. (In the
    original "0.0" could not be chosen, and the default -0.5 was no quantile.)"""
    count_exponent: float = 3.0
    """The n-th occurrence of a caption in an episode is worth 1 / n to this power."""
    online: dict[str, Any] | None = None
    """Lets the model learn from a judge meanwhile: the fields of `OnlineJudge`; null: it stays as it is."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        if not 0 <= self.count_exponent < math.inf:
            raise ConfigError(f"count_exponent must be at least 0 and finite, got {self.count_exponent}")
        if self.threshold_quantile != 0 and not 0.05 <= self.threshold_quantile <= 0.95:
            raise ConfigError(
                f"threshold_quantile must be 0 (no threshold) or lie between 0.05 and 0.95, got "
                f"{self.threshold_quantile}"
            )
        self._judge = None if self.online is None else _read(OnlineJudge, "online", self.online)
        if self._judge is not None:
            _read(OnlineLearning, "online.learning", self._judge.learning)
            _check_address(self._judge)
            _check_names(self._judge, self.path)
        self._table: RewardTable | None = None
        self._online: OnlineReward | None = None

    def accepts(self, world: WorldSpec) -> str | None:
        """As of `Part`; and whether its model was distilled in such a world, and its judge can be asked about it."""
        reason = super().accepts(world) or self._model_refusal(world) or self._new_model_refusal(world)
        return reason if reason or self._judge is None else _judge_refusal(self._judge, world.subject)

    def _model_refusal(self, world: WorldSpec) -> str | None:
        """Why the model knows nothing of such a world; None also of one that does not say where it was distilled."""
        description = None if self.path is None else Path(self.path) / DESCRIPTION
        if description is None or not description.is_file():
            return None  # what is missing is told by `check`
        try:
            distilled: str = read_object(description, SETTINGS)["about"].get("world", world.subject)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{description} cannot be read: {error!r}") from error
        if distilled == world.subject:
            return None
        return f"{self.path} was distilled from pairs of the world {distilled!r}, and this is {world.subject!r}"

    def _new_model_refusal(self, world: WorldSpec) -> str | None:
        """Why what is to learn from the judge cannot read such a world's captions."""
        kind = None if self._judge is None or self.path is not None else self._judge.model
        if kind is None or world.subject is None or not _reads_messages(kind):
            return None
        usual = find_subject(world.subject).reward_model
        if _reads_messages(usual):
            return None
        return f"online.model={kind} reads NetHack's messages alone: set online.model={usual}, or leave it out"

    def check(self) -> None:
        """Raise `ConfigError` if there is neither a reward model nor a judge that teaches one."""
        if self.path is None and self._judge is None:
            raise ConfigError(
                "a reward model is missing: set path=FOLDER, as `groundling distill` wrote it ('Motif' in the docs), "
                "or online.judge=ID, or take the part out"
            )
        if self.path is not None and not (Path(self.path) / DESCRIPTION).is_file():
            load_reward_model(self.path)  # which says what is missing

    def check_normalization(self, normalization: Normalization | None) -> None:
        """Raise `ConfigError` if a reward model with this normalisation cannot be used so."""
        if normalization is None and (self.normalize or self.threshold_quantile):
            raise ConfigError(
                "this reward model gives labels 0 and 1, which have no mean and quantiles to normalise with: set "
                "normalize=false and threshold_quantile=0"
            )

    def begin(self, run: Surroundings) -> None:
        """Load the model, and the judge that teaches it.

        Raises:
            ConfigError: one of them cannot be had, or they do not fit the options.
        """
        device = find_device(run.device)
        if self.path is not None:
            model = load_reward_model(self.path, device)
        else:
            assert self._judge is not None
            with torch.random.fork_rng():
                torch.manual_seed(run.seed)
                question = _question(self._judge, run.world)
                kind = self._judge.model or question.subject.reward_model
                model = reward_models.create(kind).to(device).eval()
        online = None if self._judge is None else _teaching(self._judge, model, run)
        self.use(model, online)

    def use(self, model: RewardModel, online: OnlineReward | None = None) -> None:
        """Reward by ``model``, which ``online`` teaches.

        Raises:
            ConfigError: it does not fit the options.
        """
        self._table, self._online = RewardTable(model), online
        self.check_normalization(model.normalization)

    def rewards(self, stretch: Stretch) -> Tensor:
        """float32 ``(num_steps, num_envs)``; without gradients."""
        captions, table = stretch.judged or stretch.captions, self._table
        assert captions is not None and table is not None
        if self._online is not None:
            self._online.observe(captions.ids, captions.read, captions.goals, captions.contexts)
            self._online.update()  # the table notices that the model is another
        raw = table(captions.ids, captions.read)
        return stretch.spread(captions, self.worth(raw, captions.counts, table.model.normalization))

    def worth(self, rewards: Tensor, counts: Tensor, normalization: Normalization | None) -> Tensor:
        """r̂ = (r - mean) / √variance;   r̂ · [r̂ > ε] / N(caption)^β   (section 3 and appendix of Motif's paper).

        ε is a quantile of the model's own rewards, normalised or not; what is at or below it becomes 0.

        Args:
            rewards: Float, any shape: the reward model's numbers.
            counts: Of the same shape: how often the caption has occurred in the episode, this time included.
            normalization: Of the reward model.

        Raises:
            ConfigError: see `check_normalization`.
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
        """Where a judge is asked what `OnlineReward.figures` tells."""
        return {} if self._online is None else self._online.figures()

    def save(self, folder: Path) -> None:
        """What the model has said so far; of one that learns online also itself and what it was told."""
        assert self._table is not None
        save_file(self._table.state_dict(), folder / _TABLE)
        if self._online is not None:
            self._online.model.save(folder / MODEL)
            save_file(self._online.state_dict(), folder / _ANSWERS)

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote.

        Raises:
            ConfigError: the reward model is another one than it was.
        """
        assert self._table is not None
        if self._online is not None:
            model, saved = self._online.model, load_reward_model(folder / MODEL)
            if (saved.id, saved.args) != (model.id, model.args):
                raise ConfigError(
                    f"{folder} holds a reward model of the kind {saved.id} {saved.args}, the run now has {model.id} "
                    f"{model.args}: set the part's path to what it was, or run_dir to a new folder"
                )
            model.take_up(saved)
            self._online.load_state_dict(load_file(folder / _ANSWERS))
        table = load_file(folder / _TABLE)
        if self._online is None and not has_rewarded(self._table.model, folder):
            raise ConfigError(
                f"{folder} was trained with another reward model than {self.path}, and another reward would be learnt "
                "from here on: bring the first one back, or set run_dir to a new folder"
            )
        self._table.load_state_dict(table)

    def close(self) -> None:
        if self._online is not None:
            self._online.close()


def has_rewarded(model: RewardModel, folder: Path) -> bool:
    """Whether the part's ``folder`` in a checkpoint holds rewards of this ``model``, and not none or another's."""
    try:
        with safe_open(folder / _TABLE, "pt") as table:
            version: Any = table.get_tensor("version").tolist()
    except (OSError, SafetensorError):
        return False
    return bool(version == model.version)


def _read(kind: Any, key: str, values: Mapping[str, Any]) -> Any:
    """A dataclass from its fields' values.

    Raises:
        ConfigError: a field that it does not have or that is missing, or a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key} must be a mapping, {{name: value}}, got {values!r}")
    names = [f.name for f in fields(kind)]
    for name in values:
        if name not in names:
            raise ConfigError(unknown(f"argument of {key}", name, names))
    if "judge" in names and values.get("judge") is None:
        raise ConfigError(f"{key} needs a judge: one of `groundling list judges`")
    check_types(kind, f"{key}.", values)
    return kind(**values)


def _check_address(settings: OnlineJudge) -> None:
    """Raise `ConfigError` on a server's address that is none or holds a secret: it is soon written to a file."""
    if "api_key_env" in inspect.signature(judges.get(settings.judge)).parameters:
        named = ("base_url", "api_key_env")
        check_address(**{key: str(settings.args[key]) for key in named if key in settings.args})


def _reads_messages(kind: str) -> bool:
    return bool(getattr(reward_models.get(kind), "reads_messages", False))


def _check_names(settings: OnlineJudge, path: str | None) -> None:
    """Raise `ConfigError` where there is no such judge, argument of it, or model, or where a model is named in vain."""
    try:
        check_types(judges.get(settings.judge), "", settings.args)
        judges.check_arguments(settings.judge, settings.args)
    except ConfigError as error:
        raise ConfigError(f"online.judge={settings.judge}: {error}: see online.args") from error
    if settings.model is None:
        return
    if path is not None:
        raise ConfigError(
            f"online.model={settings.model} does nothing beside path={path}, whose model learns: leave one out"
        )
    missing = reward_models.missing_arguments(settings.model, ())
    if missing:
        raise ConfigError(
            f"online.model={settings.model} cannot be made anew, it needs {', '.join(missing)}: set path to one that "
            "`groundling distill` wrote"
        )


def _judge_refusal(settings: OnlineJudge, world: str | None) -> str | None:
    """Why a judge cannot be asked about this kind of world, as far as is known before it is loaded; None if it can."""
    try:
        question, kind = _question(settings, world), judges.get(settings.judge)
        light = isinstance(kind, type) and (issubclass(kind, FigureJudge) or getattr(kind, "effortless", False))
        return _make_judge(settings).accepts(question) if light else None
    except ConfigError as error:
        return str(error)


def _question(settings: OnlineJudge, world: str | None) -> Question:
    if world is None:
        raise ConfigError("no judge is told about this world, for which no subject is registered: leave online out")
    return Question(settings.goal, settings.prompt, world=world)


def _make_judge(settings: OnlineJudge) -> Judge:
    try:
        check_types(judges.get(settings.judge), "", settings.args)
        judge = judges.create(settings.judge, **settings.args)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"online.judge={settings.judge}: {error}: see online.args") from error
    if not isinstance(judge, Judge):
        raise ConfigError(
            f"online.judge={settings.judge} judges by figures, and a judge of captions is needed: choose another"
        )
    return judge


def _teaching(settings: OnlineJudge, model: RewardModel, run: Surroundings) -> OnlineReward:
    """What lets ``model`` learn from a judge."""
    if run.processes.size > 1:
        raise ConfigError(
            "an online judge is asked in one process: of several, each would learn another reward. Start one "
            "process, or annotate first and leave online out"
        )
    judge, question = _make_judge(settings), _question(settings, run.world)
    return OnlineReward(model, online_judge(judge, question), OnlineLearning(**settings.learning))
