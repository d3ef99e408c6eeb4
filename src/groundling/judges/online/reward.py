"""Online judging as in ONI (arXiv 2410.23022): a reward model learns while the agent trains, without delaying it."""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from groundling.errors import ConfigError, ForeignError, RunError, warn_caller
from groundling.judges.asking.judge import Judge, Outcome, ask
from groundling.judges.asking.questions import Question
from groundling.judges.online.background import BackgroundJudge, OnlineLearning, train_copy
from groundling.judges.preferences.pairs import Comparison, Preference, caption_ids
from groundling.judges.preferences.recording import in_context
from groundling.judges.reward_models.distill import TrainingPairs
from groundling.judges.reward_models.models import TableRewardModel
from groundling.judges.reward_models.reward_model import QUANTILE_LEVELS, Normalization, RewardModel

AskJudge = Callable[[list[tuple[str, ...]], list[str]], Sequence[float | None]]
"""Accepts questions about one or two captions and, for each question, a context that its captions do not repeat.

Returns a value per question: for one caption, 1 if it deserves a reward and 0 otherwise, like ONI's labels; for two,
the probability that the first is preferred (0.5 for a tie). The value is None if there is no answer."""
_NOTHING = ""  # the empty caption, whose value is 0; single captions are compared with it
_MAX_INVALID = 20  # number of answers, all without a verdict, after which the judge is considered broken
_CERTAIN = {Preference.FIRST: (1.0, 0.0, 0.0), Preference.SECOND: (0.0, 1.0, 0.0), Preference.TIE: (0.0, 0.0, 1.0)}


def online_judge(judge: Judge, question: Question) -> AskJudge:
    """Adapt ``judge`` to the questions of `OnlineReward`; raise `ConfigError` if it cannot answer ``question``.

    ONI asks a yes-or-no question about one caption. Here, the caption is compared with an empty one; its value is 1 if
    it is preferred, otherwise 0. The answer is None if the request fails, or if neither the reply nor a retry has a
    verdict. The returned function raises `RunError` if all requests fail, or if none of 20 or more replies has one.
    """
    if (refusal := judge.accepts(question)) is not None:
        raise ConfigError(refusal)
    has_verdict, num_invalid = False, 0

    def answer(questions: list[tuple[str, ...]], contexts: list[str]) -> list[float | None]:
        nonlocal has_verdict, num_invalid
        answers: list[float | None] = [0.0 if one == (_NOTHING,) else None for one in questions]
        to_ask = [place for place, known in enumerate(answers) if known is None]
        both = [(*questions[place], _NOTHING)[:2] for place in to_ask]
        shown = [Comparison(one, other, contexts[place]) for (one, other), place in zip(both, to_ask, strict=True)]
        replied: list[Outcome] = []
        failures: list[str] = []

        def keep(outcome: Outcome) -> None:
            if (failure := outcome.replies[-1].failure) is not None:
                failures.append(failure)
                return
            replied.append(outcome)
            place = to_ask[outcome.number]
            answers[place] = _value(outcome, single=len(questions[place]) == 1)

        try:
            ask(judge, question, shown, keep)
        except RunError as error:
            if not replied or isinstance(error, ForeignError):
                raise
        if to_ask and not replied:
            raise RunError(f"the judge answered none of {len(to_ask)} questions; the first error: {failures[0]}")
        has_verdict |= any(outcome.verdict is not None for outcome in replied)
        num_invalid += sum(outcome.verdict is None for outcome in replied)
        if not has_verdict and num_invalid >= _MAX_INVALID:
            raise RunError(
                f"the judge returned no verdict in {num_invalid} answers, with two attempts each; the last reply: "
                f"{replied[-1].excerpt!r}. The prompt asked: {question.verdict_form(judge.answer_format)}"
            )
        return answers

    return answer


def _value(outcome: Outcome, single: bool) -> float | None:
    if outcome.verdict is None:
        return None
    first, second, tie = outcome.replies[-1].probabilities or _CERTAIN[Preference(outcome.verdict.choice)]
    return float(first > max(second, tie)) if single else first + tie / 2


_Places = tuple[int, ...]  # a question: indices into the list of captions


class OnlineReward:
    """Queries a judge about new captions and trains ``model`` on the answers, both in the background.

    A table stores labels as they arrive. A classifier is trained on labelled captions, and any other model on
    preferences between captions: a thread trains a copy, and `update` copies its weights back. Call `observe` and
    `update` once per batch of frames; both return immediately. Only `update` changes the model.

    Args:
        model: The model to train, modified in place.
        judge: Called in a background thread.
        warn: Called with a message if the judge or training fails.
    """

    def __init__(
        self,
        model: RewardModel,
        judge: AskJudge,
        learning: OnlineLearning | None = None,
        warn: Callable[[str], None] = warn_caller,
    ) -> None:
        self.model, self.learning, self._warn = model, learning or OnlineLearning(), warn
        self._ranks = not (model.gives_labels or isinstance(model, TableRewardModel))
        if self._ranks and model.normalization is None:
            # Until the first training round, rewards keep their initial scale (about 1e-4).
            model.normalization = Normalization(0.0, 1.0, (0.0,) * len(QUANTILE_LEVELS))
        self._rng = np.random.default_rng(self.learning.seed)
        self._captions: list[str] = []  # distinct captions
        self._goals: list[str] = []  # goal of each caption
        self._contexts: list[str] = []  # text that each caption starts with
        self._of_goal: dict[str, list[int]] = {}  # indices of captions, by goal
        self._distinct: set[str] = set()
        self._known: set[int] = set()  # ids of captions that need not be read again
        self._answered: dict[_Places, float] = {}
        self._trained_on = 0  # number of answers used by the last completed training round
        self._training_on = 0
        self._training: Future[tuple[RewardModel, int, int]] | None = None
        self._trainer, self._stop = ThreadPoolExecutor(1, "reward model"), threading.Event()
        self._tested = self._agreed = 0

        def answers_to(questions: list[_Places]) -> Sequence[float | None]:
            asked = [self._question(places) for places in questions]
            return judge([captions for captions, _ in asked], [context for _, context in asked])

        self._judge = BackgroundJudge(answers_to, self.learning.judge_batch_size, warn=warn)

    def observe(
        self,
        ids: Tensor,
        read: Callable[[Sequence[int]], Sequence[str]],
        goals: Sequence[str] | None = None,
        contexts: Sequence[str] | None = None,
    ) -> None:
        """Queue questions about captions that have not occurred before.

        Args:
            ids: Ids of the captions, int64 of any shape, on the CPU.
            read: Returns the captions at the passed indices of the flattened ids; called only for new ids.
            goals: Goal for each flattened id, such as a text's prompt; captions with different goals are not compared.
            contexts: Text that each caption starts with, on separate lines. The judge is shown this text only once.
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
        self._judge.offer(questions)

    def observe_captions(self, captions: Sequence[str], goals: Sequence[str] | None = None) -> None:
        """Queue questions about captions that have not occurred before; see `observe`."""
        ids = torch.from_numpy(caption_ids(captions))
        self.observe(ids, lambda places: [captions[place] for place in places], goals)

    def update(self) -> bool:
        """Apply new answers and trained weights; return True if the model changed.

        Raises:
            Exception: The judge's error, if it has never answered and is misconfigured.
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
            self._training_on, model = len(self._answered), copy.deepcopy(self.model)
            self._training = self._trainer.submit(
                train_copy, model, self._pairs(), self._trained_on, self.learning, self._stop
            )
        return changed

    def figures(self) -> dict[str, int]:
        """Return counts to log.

        ``online_messages``: known captions; ``online_answers``: answered questions; ``online_invalid``: questions
        without a valid answer; ``online_failures``: failed calls. Gradient-trained models also have
        ``online_tested``, the number of new answers (without ties) that a trained model was tested on before it
        learned from them, and ``online_agreed``, the number of tested answers that it agreed with.
        """
        figures = {
            "online_messages": len(self._captions),
            "online_answers": len(self._answered),
            "online_invalid": self._judge.invalid,
            "online_failures": self._judge.failures,
        }
        if not isinstance(self.model, TableRewardModel):
            figures |= {"online_tested": self._tested, "online_agreed": self._agreed}
        return figures

    def state_dict(self) -> dict[str, Tensor]:
        """Return the answers; unanswered questions are asked again when their captions recur."""
        questions = np.array(list(self._answered), dtype=np.int64).reshape(len(self._answered), self._sides)
        used, places = np.unique(questions, return_inverse=True)
        captions, lengths = _to_bytes([self._captions[place] for place in used])
        goals, goal_lengths = _to_bytes([self._goals[place] for place in used])
        return {
            "captions": captions,  # uint8, concatenated UTF-8
            "lengths": lengths,  # int64 (n,)
            "goals": goals,
            "goal_lengths": goal_lengths,
            "questions": torch.from_numpy(places.reshape(questions.shape).astype(np.int64)),  # (m, 1 or 2), indices
            "answers": torch.tensor(list(self._answered.values()), dtype=torch.float32),  # (m,)
            "trained_on": torch.tensor(self._trained_on),  # number of answers
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a `state_dict` before anything is observed; the model's own state is saved with the model."""
        if state["questions"].shape[1] != self._sides:
            raise RunError(
                f"the checkpoint has answers about {state['questions'].shape[1]} captions each, but a "
                f"{self.model.id} model needs answers about {self._sides}: resume with the original reward model"
            )
        captions = _from_bytes(state["captions"], state["lengths"])
        goals = _from_bytes(state["goals"], state["goal_lengths"])
        for caption, goal in zip(captions, goals, strict=True):
            self._add(caption, goal)
        places = [tuple(question) for question in state["questions"].tolist()]
        self._answered = dict(zip(places, state["answers"].tolist(), strict=True))
        self._trained_on = int(state["trained_on"])

    def close(self) -> None:
        """Stop the threads (see `BackgroundJudge.close`). Warn if the judge never answered or was still failing."""
        self._stop.set()
        self._trainer.shutdown()
        self._judge.close()
        never = bool(self._captions) and not (self._answered or self._judge.has_answered)
        if never or self._judge.failing is not None:
            error = self._judge.failing
            failed = f" (the last with {type(error).__name__}: {error})" if error is not None else ""
            hint = ". Only captions with the same goal are compared; for generated texts, set world.texts_per_prompt=2"
            self._warn(
                f"the judge returned {len(self._answered):,} valid answers about {len(self._captions):,} captions and "
                f"{self._judge.invalid} without a verdict, and failed in {self._judge.failures} calls{failed}; the "
                f"reward model learned only from the valid answers{hint if never and self._ranks else ''}"
            )

    @property
    def _sides(self) -> int:
        return 2 if self._ranks else 1

    def _question(self, places: _Places) -> tuple[tuple[str, ...], str]:
        """Return a question's captions, without the context that they start with, and the context."""
        captions = tuple(self._captions[place] for place in places)
        context = self._contexts[max(places)]  # of the newest caption, since checkpoints do not keep contexts
        begins = in_context(context, "")
        if not all(caption.startswith(begins) for caption in captions):
            return captions, ""
        return tuple(caption.removeprefix(begins) for caption in captions), context

    def _add(self, caption: str, goal: str, context: str = "") -> list[_Places]:
        """Add a new caption, and return the questions about it."""
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
        # The order is random, so that a judge's position bias does not favour newer captions.
        questions: list[_Places] = [
            (place, earlier[i]) if self._rng.random() < 0.5 else (earlier[i], place) for i in drawn
        ]
        earlier.append(place)
        return questions

    def _pairs(self) -> TrainingPairs:
        """Return the answers as training pairs; a labelled caption becomes a pair with one side."""
        indices = torch.tensor(list(self._answered), dtype=torch.int64)[..., None]  # (m, 1 or 2, 1)
        first = torch.tensor(list(self._answered.values()))[:, None]
        targets = torch.cat([first, 1 - first], dim=1) if self._ranks else first  # (m, 1 or 2)
        return TrainingPairs(list(self._captions), indices, targets)

    def _take_over(self) -> bool:
        """Apply the result of a completed training round; return True if the model changed."""
        training = self._training
        if training is None or not training.done():
            return False
        self._training = None
        # This is set only now, because a checkpoint written during training does not contain the trained weights.
        self._trained_on = self._training_on
        if (error := training.exception()) is not None:
            self._warn(f"the reward model could not be trained ({error}); its weights remain unchanged")
            return False
        model, agreed, tested = training.result()
        self._agreed += agreed
        self._tested += tested
        self.model.take_up(model)
        return True


def _to_bytes(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the concatenated UTF-8 bytes, uint8, and the length of each string, int64 ``(n,)``."""
    written = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = torch.tensor([len(text) for text in written], dtype=torch.int64)
    return torch.tensor(list(b"".join(written)), dtype=torch.uint8), lengths


def _from_bytes(written: Tensor, lengths: Tensor) -> list[str]:
    return [part.numpy().tobytes().decode("utf-8", "surrogatepass") for part in written.split(lengths.tolist())]
