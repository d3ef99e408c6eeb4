"""Settings of a judge that teaches a reward model during training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from groundling.errors import ConfigError
from groundling.fields import ArgumentsOf, CommandLineOnly
from groundling.io.chat_server import check_address
from groundling.judges.asking.judge import FigureJudge, Judge, judges
from groundling.judges.asking.questions import Question, find_subject
from groundling.judges.online.background import OnlineLearning
from groundling.judges.online.reward import OnlineReward, online_judge
from groundling.judges.reward_models import RewardModel, reward_models
from groundling.registry import check_arguments, declarations, missing_arguments, taken
from groundling.rewards.part import RewardContext


def _asks_server(judge: str) -> bool:
    """Return True if a judge sends requests to a server, which its arguments name."""
    declared = declarations(judges.get(judge)) if judge in judges else {}
    return any(CommandLineOnly in metadata for metadata in declared.values())


@dataclass(kw_only=True)
class OnlineJudge:
    """A judge that is asked about new captions while training runs, without delaying it (ONI, arXiv 2410.23022)."""

    judge: Annotated[str, CommandLineOnly.when(_asks_server)]
    """One of `groundling list judges`, except those of figures; one that asks a server only from the command line."""
    args: Annotated[dict[str, Any], ArgumentsOf(judges, "judge")] = field(default_factory=dict)
    """Arguments of the judge, as `groundling annotate --judge ID key=value` takes them."""
    goal: str = ""
    """Goal by which captions are compared: one of the world's (in NetHack defaultgoal, zeroknowledge, combat, gold,
    stairs), or a sentence; empty: the world's first."""
    prompt: str = "default"  # Form of the question: default, or in NetHack reworded, Motif's other version
    model: str | None = None
    """Reward model to train if the part has no path: one that ranks captions, motif (for NetHack's messages) or
    characters (null: the one that suits the world); or one of labels, table or classifier (for NetHack's messages),
    with normalize=false and threshold_quantile=0."""
    learning: dict[str, Any] = field(default_factory=dict)
    """Arguments of `groundling.judges.online.background.OnlineLearning`: train_every, epochs, learning_rate, …"""

    @classmethod
    def of(cls, values: Any, path: str | None) -> "OnlineJudge":
        """Read the settings of a part with the reward model ``path``; `ConfigError` on unknown or invalid ones."""
        if isinstance(values, cls):
            settings = values
        elif isinstance(values, Mapping):
            check_arguments(cls, values, "online", "online.")
            if values.get("judge") is None:
                raise ConfigError("online needs a judge: one of `groundling list judges`")
            settings = cls(**values)
        else:
            raise ConfigError(f"online must be a mapping, {{name: value}}, got {values!r}")
        check_arguments(OnlineLearning, settings.learning, "online.learning", "online.learning.")
        if _asks_server(settings.judge):
            # An address with a secret would be written to files.
            check_address(**{k: str(v) for k, v in taken(check_address, settings.args).items()})
        settings._check_names(path)
        return settings

    def _check_names(self, path: str | None) -> None:
        try:
            check_arguments(judges.get(self.judge), self.args, f"judge {self.judge!r}")
        except ConfigError as error:
            raise ConfigError(f"online.judge={self.judge}: {error}: see online.args") from error
        if self.model is None:
            return
        if path is not None:
            raise ConfigError(
                f"online.model={self.model} does nothing with path={path}, whose model learns: leave one out"
            )
        if missing := missing_arguments(reward_models.get(self.model), ()):
            raise ConfigError(
                f"a new online.model={self.model} cannot be made, it needs {', '.join(missing)}: set path to one that "
                "`groundling distill` wrote"
            )

    def refusal(self, world: str | None) -> str | None:
        """Return why judge or model do not suit a kind of world, or None; judges that are slow to make are skipped."""
        if world is not None and self.model is not None and _reads_messages(self.model):
            usual = find_subject(world).reward_model
            if not _reads_messages(usual):
                return (
                    f"online.model={self.model} reads NetHack's messages alone: set online.model={usual}, or leave it "
                    "out"
                )
        try:
            question, kind = self._question(world), judges.get(self.judge)
            fast = isinstance(kind, type) and (issubclass(kind, FigureJudge) or getattr(kind, "effortless", False))
            return self._make().accepts(question) if fast else None
        except ConfigError as error:
            return str(error)

    def new_model(self, context: RewardContext) -> RewardModel:
        """Make the reward model to train, with weights that depend on the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(context.seed)
            return reward_models.create(self.model or self._question(context.world).subject.reward_model)

    def teach(self, model: RewardModel, context: RewardContext) -> OnlineReward:
        """Load the judge, and let it train ``model``; raise `ConfigError` if there are several processes."""
        if context.processes.size > 1:
            raise ConfigError(
                "an online judge is asked in one process: of several, each would learn another reward. Start one "
                "process, or annotate first and leave online out"
            )
        judge = online_judge(self._make(), self._question(context.world))
        return OnlineReward(model, judge, OnlineLearning(**self.learning))

    def _question(self, world: str | None) -> Question:
        if world is None:
            raise ConfigError(
                "judges know nothing of this world, for which no subject is registered: leave online out"
            )
        return Question(self.goal, self.prompt, world=world)

    def _make(self) -> Judge:
        try:
            judge = judges.create(self.judge, **self.args)
        except (TypeError, ConfigError) as error:
            raise ConfigError(f"online.judge={self.judge}: {error}: see online.args") from error
        if not isinstance(judge, Judge):
            raise ConfigError(
                f"online.judge={self.judge} judges by figures, and a judge of captions is needed: choose another"
            )
        return judge


def _reads_messages(kind: str) -> bool:
    return bool(getattr(reward_models.get(kind), "reads_messages", False))
