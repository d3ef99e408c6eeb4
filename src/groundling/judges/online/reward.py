"""Online judging, as in ONI (arXiv 2410.23022): the reward model learns while the agent trains, which never waits."""

import copy
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from groundling.errors import ConfigError, RunError
from groundling.judges.online.background import BackgroundJudge
from groundling.judges.preferences.segments import caption_ids
from groundling.judges.preferences.texts import in_context
from groundling.judges.reward_models.distill import agreement, normalize, train_epoch
from groundling.judges.reward_models.message_table import TableRewardModel
from groundling.judges.reward_models.reward_model import QUANTILE_LEVELS, Normalization, RewardModel
from groundling.judges.reward_models.training_pairs import TrainingPairs

Judge = Callable[[list[tuple[str, ...]], list[str]], Sequence[float | None]]
"""Answers questions of one caption (1 if it is worth a reward, otherwise 0, as ONI's labels) or of two (the
probability that the first is preferred; 0.5 is a tie). Beside them stands the context of each question, which its
captions have in common and do not repeat. None is no answer."""
_Places = tuple[int, ...]
"""A question as places in the list of captions."""


@dataclass(frozen=True)
class OnlineLearning:
    """How a reward model is kept up with what the judge says."""

    train_every: int = 1000
    """Answers after which a model that is trained by gradients is trained anew, on all answers."""
    epochs: int = 3
    learning_rate: float = 1e-4
    batch_size: int = 256
    comparisons: int = 2
    """Of a model that ranks: with how many earlier captions of the same goal a new one is compared."""
    judge_batch_size: int = 100
    """Questions of one call to the judge."""
    seed: int = 0
    """Of the captions that are compared and of the order of training."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        for name in ("train_every", "epochs", "learning_rate", "batch_size", "comparisons", "judge_batch_size"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0, got {getattr(self, name)}")


class OnlineReward:
    """Puts new captions to a judge in the background, and lets ``model`` learn from the answers.

    A table takes up labels as they come. A classifier is trained on labelled captions, any other model on preferences
    between captions: in a thread, on a copy, whose weights `update` takes over when they are done. Call `observe` and
    `update` once per batch of frames; both return at once. Only `update` changes the model, so that whoever else uses
    it in the same thread sees it whole, and a `RewardTable` notices by its version.

    Args:
        model: Changed in place.
        judge: Asked in a thread of its own.
        learning: How.
        warn: Told when the judge or the training fails.
    """

    def __init__(
        self,
        model: RewardModel,
        judge: Judge,
        learning: OnlineLearning | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.model, self.learning, self._warn = model, learning or OnlineLearning(), warn
        self._ranks = not (model.gives_labels or isinstance(model, TableRewardModel))
        if self._ranks and model.normalization is None:
            # Until it is trained first, its rewards are next to nothing (about 1e-4) and stay so.
            model.normalization = Normalization(0.0, 1.0, (0.0,) * len(QUANTILE_LEVELS))
        self._rng = np.random.default_rng(self.learning.seed)
        self._captions: list[str] = []
        self._goals: list[str] = []  # of each caption
        self._contexts: list[str] = []  # with which each begins
        self._of_goal: dict[str, list[int]] = {}  # places of the captions
        self._can_compare = True
        self._distinct: set[str] = set()  # the same
        self._known: set[int] = set()  # ids that need not be read again
        self._answered: dict[_Places, float] = {}
        self._trained_on = 0
        self._training: _Training | None = None
        self._tested = self._agreed = 0

        def ask(questions: list[_Places]) -> Sequence[float | None]:
            asked = [self._asked(places) for places in questions]
            return judge([captions for captions, _ in asked], [context for _, context in asked])

        self._judge = BackgroundJudge(ask, self.learning.judge_batch_size, warn=warn)

    def observe(
        self,
        ids: Tensor,
        read: Callable[[Sequence[int]], Sequence[str]],
        goals: Sequence[str] | None = None,
        contexts: Sequence[str] | None = None,
    ) -> None:
        """Have what has never come up put to the judge.

        Args:
            ids: Int64, any shape, on the CPU: of each caption, one that tells it from all others.
            read: Gives the captions at these places of the flattened ids; asked only for ids that are new.
            goals: What was wanted, one for each of the flattened ids, such as the prompts of written texts: captions of
                different goals are not compared. None: all have the same.
            contexts: What the captions begin with, on lines of its own, one for each of the flattened ids: the judge is
                told it once. None: nothing.
        """
        flat, first = np.unique(ids.flatten().numpy(), return_index=True)
        new = np.array([id not in self._known for id in flat.tolist()], dtype=bool)
        self._known.update(flat[new].tolist())
        questions: list[_Places] = []
        places = np.sort(first[new]).tolist()
        for place, caption in zip(places, read(places), strict=True):
            if caption not in self._distinct:
                goal = "" if goals is None else goals[place]
                questions += self._add(caption, goal, "" if contexts is None else contexts[place])
        if questions:
            self._judge.offer(questions)
        self._check_that_goals_recur()

    def observe_captions(self, captions: Sequence[str], goals: Sequence[str] | None = None) -> None:
        """Have what has never come up put to the judge; ``goals`` as of `observe`."""
        ids = torch.from_numpy(caption_ids(captions))
        self.observe(ids, lambda places: [captions[place] for place in places], goals)

    def update(self) -> bool:
        """Take up what the judge has answered and what was learnt since the last call.

        Returns:
            Whether the model has changed.

        Raises:
            Exception: the judge's, which has never answered and cannot.
        """
        new = dict(self._judge.answers())
        self._answered |= new
        if isinstance(self.model, TableRewardModel):
            if new:
                captions = [self._captions[place] for (place,) in new]
                self.model.set(captions, np.array(list(new.values()), dtype=np.float32))
            return bool(new)
        changed = self._take_over()
        if self._training is None and len(self._answered) - self._trained_on >= self.learning.train_every:
            self._training = _Training(self.model, self._pairs(), self._trained_on, self.learning)
        return changed

    def figures(self) -> dict[str, int]:
        """What to log, as counts.

        ``online_messages``: captions known; ``online_answers``: questions answered; ``online_invalid``: those without a
        valid answer; ``online_failures``: calls in which the judge failed. Of a model that is trained by gradients also
        ``online_tested``: answers, ties left out, that a model trained before was asked for before it learnt from them;
        ``online_agreed``: in how many of these it agreed with the judge.
        """
        judge = self._judge
        figures = {
            "online_messages": len(self._captions),
            "online_answers": len(self._answered),
            "online_invalid": judge.invalid,
            "online_failures": judge.failures,
        }
        if not isinstance(self.model, TableRewardModel):
            figures |= {"online_tested": self._tested, "online_agreed": self._agreed}
        return figures

    def state_dict(self) -> dict[str, Tensor]:
        """What has been answered.

        ``captions`` uint8, in UTF-8, one after the other, and their ``lengths`` int64 (n,); likewise their ``goals``
        and ``goal_lengths``; ``questions`` int64 (m, 1 or 2) as places in them, ``answers`` float32 (m,), and how many
        of them were ``trained_on``, int64 ().

        What the judge has not answered is put to it again when it comes up again.
        """
        questions = np.array(list(self._answered), dtype=np.int64).reshape(len(self._answered), self._sides)
        used, places = np.unique(questions, return_inverse=True)
        captions, lengths = _to_bytes([self._captions[place] for place in used])
        goals, goal_lengths = _to_bytes([self._goals[place] for place in used])
        return {
            "captions": captions,
            "lengths": lengths,
            "goals": goals,
            "goal_lengths": goal_lengths,
            "questions": torch.from_numpy(places.reshape(questions.shape).astype(np.int64)),
            "answers": torch.tensor(list(self._answered.values()), dtype=torch.float32),
            "trained_on": torch.tensor(self._trained_on),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state_dict` gave, before anything was observed; the model's own state is saved with the model.

        Raises:
            RunError: the answers are of another kind of model.
        """
        if state["questions"].shape[1] != self._sides:
            raise RunError(
                f"the checkpoint's answers are about {state['questions'].shape[1]} captions each, those of a "
                f"{self.model.id} model about {self._sides}: resume with the reward model that it was made with"
            )
        captions = _from_bytes(state["captions"], state["lengths"])
        goals = _from_bytes(state["goals"], state["goal_lengths"])
        for caption, goal in zip(captions, goals, strict=True):
            self._add(caption, goal)
        places = [tuple(question) for question in state["questions"].tolist()]
        self._answered = dict(zip(places, state["answers"].tolist(), strict=True))
        self._trained_on = int(state["trained_on"])

    def close(self) -> None:
        """End the threads; what is asked just now is waited for as `BackgroundJudge.close` says, training for a batch.

        Warns where the judge was asked and has never answered, or failed when it was asked last.
        """
        if self._training is not None:
            self._training.end()
        self._judge.close()
        if self._judge.invalid + self._judge.failures and not self._judge.has_answered:
            self._warn(
                "the judge has given no valid answer to any question: the reward model has learnt nothing "
                f"({self._judge.invalid} answers without a verdict, {self._judge.failures} failures)"
            )
        elif (error := self._judge.failing) is not None:
            self._warn(
                f"the judge failed to the end, in {self._judge.failures} calls ({type(error).__name__}: {error}); its "
                f"{len(self._answered):,} answers before are all that the reward model had"
            )

    @property
    def _sides(self) -> int:
        return 2 if self._ranks else 1

    def _asked(self, places: _Places) -> tuple[tuple[str, ...], str]:
        """A question as the judge is asked it: its captions without what they begin with, and that."""
        captions = tuple(self._captions[place] for place in places)
        context = self._contexts[max(places)]  # of the newest: a checkpoint does not keep what others begin with
        begins = in_context(context, "")
        if not all(caption.startswith(begins) for caption in captions):
            return captions, ""
        return tuple(caption.removeprefix(begins) for caption in captions), context

    def _add(self, caption: str, goal: str, context: str = "") -> list[_Places]:
        """Note a new caption.

        Returns:
            The questions that it raises.
        """
        place = len(self._captions)
        self._captions.append(caption)
        self._goals.append(goal)
        self._contexts.append(context)
        self._distinct.add(caption)
        if not self._ranks:
            return [(place,)]
        earlier = self._of_goal.setdefault(goal, [])
        count = min(self.learning.comparisons, len(earlier))
        drawn = self._rng.choice(len(earlier), count, replace=False).tolist() if earlier else []
        # Either may be the first, so that a judge that prefers one side does not prefer the newer caption.
        questions: list[_Places] = [
            (place, earlier[i]) if self._rng.random() < 0.5 else (earlier[i], place) for i in drawn
        ]
        earlier.append(place)
        return questions

    def _check_that_goals_recur(self) -> None:
        """Warn once where there is nothing to compare."""
        count = len(self._captions)
        if self._ranks and self._can_compare and 1 < self.learning.train_every <= count == len(self._of_goal):
            self._can_compare = False
            self._warn(
                f"the judge was not asked anything yet: no two of {count:,} captions have the same goal, and only "
                "such captions are compared (for written texts the goal is the prompt: set world.texts_per_prompt "
                "to 2 or more)"
            )

    def _pairs(self) -> TrainingPairs:
        """The answers as what is trained on; labelled captions are pairs with one side."""
        indices = torch.tensor(list(self._answered), dtype=torch.int64)[..., None]  # (m, 1 or 2, 1)
        first = torch.tensor(list(self._answered.values()))[:, None]
        targets = torch.cat([first, 1 - first], dim=1) if self._ranks else first  # (m, 1 or 2)
        return TrainingPairs(list(self._captions), indices, targets)

    def _take_over(self) -> bool:
        training = self._training
        if training is None or training.thread.is_alive():
            return False
        self._training = None
        # And not when it began: a checkpoint in between would know nothing of it.
        self._trained_on = training.answers
        self._tested += training.tested
        self._agreed += training.agreed
        if training.error is not None:
            self._warn(f"the reward model could not be trained ({training.error}); its weights stay unchanged")
            return False
        self.model.load_state_dict(training.model.state_dict())
        self.model.normalization = training.model.normalization
        self.model.mark_changed()
        return True


def _to_bytes(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Texts in UTF-8, one after the other, uint8, and the length of each, int64 ``(n,)``."""
    written = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = torch.tensor([len(text) for text in written], dtype=torch.int64)
    joined = bytearray().join(written)
    if not joined:  # PyTorch makes no tensor of it
        return torch.zeros(0, dtype=torch.uint8), lengths
    return torch.frombuffer(joined, dtype=torch.uint8), lengths


def _from_bytes(written: Tensor, lengths: Tensor) -> list[str]:
    """What `_to_bytes` was given."""
    return [part.numpy().tobytes().decode("utf-8", "surrogatepass") for part in written.split(lengths.tolist())]


class _Training:
    """A copy of a model being trained in a thread.

    Attributes:
        answers: How many it is trained on.
        tested: How many after the first ``trained_on`` are no ties.
        agreed: With how many of these it agreed before it was trained on them.
        error: What ended it early.
    """

    def __init__(self, model: RewardModel, pairs: TrainingPairs, trained_on: int, learning: OnlineLearning) -> None:
        self.model, self._pairs, self._learning = copy.deepcopy(model), pairs, learning
        self.answers, self._trained_on = len(pairs), trained_on
        self.tested = self.agreed = 0
        self.error: Exception | None = None
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._work, name="reward model", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Give it up, and wait for its thread: at most for a batch, or for what measures the model."""
        self._stop.set()
        self.thread.join()

    def _check(self, _: int = 0) -> None:
        if self._stop.is_set():
            raise RunError("its training was given up")

    def _work(self) -> None:
        learning = self._learning
        order = torch.Generator().manual_seed(learning.seed)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(trainable, lr=learning.learning_rate)
        try:
            if self._trained_on:
                new = torch.arange(self._trained_on, self.answers)
                self.agreed, self.tested = agreement(self.model, self._pairs[new])
            for _ in range(learning.epochs):
                train_epoch(self.model, optimizer, self._pairs, learning.batch_size, order, self._check)
            self._check()
            normalize(self.model, self._pairs)
        except Exception as error:  # told by whoever takes over
            self.error = error
