"""A language model is the policy; it thinks before it acts, or writes its action freely, from which it is read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.lm import LanguageModel, Prompts
from groundling.lm.read.answers import Among, answer_states, log_probs_among, states_after
from groundling.lm.write.sampling import draw
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.answer import Answer, Form
from groundling.policies.lines import spread
from groundling.policies.policy import Action, Evaluation, Outputs, Work, policies
from groundling.policies.turns import Turn, TurnTokens

_ROWS = 256
"""Tokens whose logits are held at once where there are no gradients."""


@policies.register("action_generating")
class ActionGeneratingPolicy(ActionTextPolicy):
    """An agent that writes each turn token by token: P(turn | prompt) = Π_t P(token_t | prompt, tokens before it).

    With ``thought_ends`` it thinks before it acts (ReAct, arXiv 2210.03629): it writes freely up to that text, and
    then its action. Where the thought has ``max_thought_tokens`` tokens without it, the text is put there.

    The action is ``guided``: only what continues an admissible action can come, as of ``action_writing``, whose
    probabilities these are without a thought. Else it is written freely, up to an end token, a line break, or
    ``max_action_tokens``. It is valid if it has the tokens of an admissible action, or is one apart from case, blanks,
    and marks around it (see `find_action`). Where it is none, ``invalid_action`` is taken, and the log has the rate
    (``invalid_actions``).

    Log-probabilities are those that tokens were drawn from, after temperature and guide. What a rule puts there has
    none. Prompts tell past actions, as the env has them; past thoughts are not read again.

    Actions that the tokenizer encodes alike are drawn with equal probability once their tokens are written; the share
    counts in `Action.log_probs`, not in those of tokens.

    Cloned from a dataset, an action is written without a thought.

    Args:
        lm, reference, prompt, language, replacements, system: See `ActionTextPolicy`.
        value_hidden_sizes: Widths of the value head's hidden layers. It tells a value before each token.
        temperature: Divides the logits of tokens.
        guided: Whether the action can be none but an admissible one.
        max_action_tokens: How many tokens an action has at most that is not guided; None: 16, or as many as the longest
            admissible one and the end.
        invalid_action: What is done where the answer has no admissible action; None, or where it cannot be done: the
            first that can be.
        thought_begins: Put before a thought.
        thought_ends: What a thought ends with; None: there is none.
        max_thought_tokens: How many tokens a thought has at most; None: 48.
    """

    writes_turns: ClassVar[bool] = True

    def __init__(
        self,
        lm: LanguageModel,
        reference: LanguageModel | None = None,
        prompt: str | Sequence[str] = "glam",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
        value_hidden_sizes: Sequence[int] = (1024, 1024),
        temperature: float = 1.0,
        guided: bool = True,
        max_action_tokens: int | None = None,
        invalid_action: str | None = None,
        thought_begins: str | None = None,
        thought_ends: str | None = None,
        max_thought_tokens: int | None = None,
    ) -> None:
        super().__init__(
            lm, reference, prompt, language, replacements, system, value_hidden_sizes, temperature
        )
        self._form = Form(
            lm, guided, max_action_tokens, invalid_action, thought_begins, thought_ends, max_thought_tokens
        )
        self._prompts.answer_tokens = self._form.usual_tokens

    @torch.no_grad()
    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        read = self.read(observations)
        in_conversation = not isinstance(read[0], str)
        most = self._form.most_tokens(observations, in_conversation)
        prompts = self.lm.prompt_tokens(read, most)
        answers = [
            Answer(self._form, seen.actions, in_conversation, () if self.lm.is_encoder_decoder else prompt)
            for seen, prompt in zip(observations, prompts, strict=True)
        ]
        # One for each token, and one to choose among actions of equal tokens.
        numbers = None if deterministic else _numbers(len(answers), most + 1, generator)
        writing = list(range(len(answers)))
        while writing:
            with self.lm.autocast():
                states = states_after(
                    self.lm, [prompts[i] for i in writing], [answers[i].tokens for i in writing]
                )
                logits = self.lm.backbone.logits(states).float()
            values = self.value_head(states.float())
            log_probs = self._log_probs(logits, [answers[i].among_next for i in writing])
            if numbers is None:
                tokens = log_probs.argmax(-1)
            else:
                tokens = draw(log_probs, torch.stack([numbers[i, len(answers[i].tokens)] for i in writing]))
            chosen = log_probs.gather(1, tokens[:, None])[:, 0]
            # float64 holds them all exactly, and comes to the host by one copy.
            columns = torch.stack([tokens.double(), chosen.double(), values.double()], dim=1).tolist()
            for i, (token, log_prob, value) in zip(writing, columns, strict=True):
                answers[i].write(int(token), log_prob, value)
            writing = [i for i in writing if not answers[i].ended]
        log_shares = torch.zeros(len(answers))
        for i, answer in enumerate(answers):
            same = (
                []
                if answer.invalid
                else self._form.same_tokens(answer.actions, answer.action, in_conversation)
            )
            if len(same) > 1 and numbers is not None:
                answer.action = same[int(numbers[i, len(answer.tokens)] * len(same))]
            log_shares[i] = -math.log(max(1, len(same)))
        turns = [answer.turn(observation) for observation, answer in zip(observations, answers, strict=True)]
        return Action(
            torch.tensor([answer.action for answer in answers]),
            torch.tensor([sum(answer.log_probs) for answer in answers]) + log_shares,
            torch.tensor([answer.values[0] for answer in answers]),
            turns=turns,
            tokens=TurnTokens.of(
                turns,
                [answer.log_probs for answer in answers],
                [answer.values for answer in answers],
                [answer.invalid for answer in answers],
            ),
        )

    def evaluate(self, observations: Sequence[Any], actions: Tensor) -> Evaluation:
        """Log-probabilities, entropies and values of turns, or of actions that were shown.

        Args:
            observations: `Turn`s; or what was seen where somebody else acted.
            actions: ``(batch, num_tokens)`` int64, the tokens of turns; ``(batch,)``: which of the admissible ones.

        Returns:
            Of the actions' shape. Entropies and values of no token but the chosen ones are of use.
        """
        turns = [one for one in observations if isinstance(one, Turn)]
        if not turns:
            shown = list(zip(observations, actions.tolist(), strict=True))
            in_conversation = not isinstance(self.read(observations[:1])[0], str)
            plain_turns = [self._form.plain_turn(seen, action, in_conversation) for seen, action in shown]
            copies = torch.tensor(
                [len(self._form.same_tokens(seen.actions, action, in_conversation)) for seen, action in shown]
            )
            width = max(len(turn.tokens) for turn in plain_turns)
            tokens = self.evaluate(plain_turns, torch.zeros(len(plain_turns), width, dtype=torch.long))
            log_probs = tokens.log_probs.sum(-1) - copies.log().to(tokens.log_probs)
            return Evaluation(
                log_probs,
                tokens.entropies.sum(-1),
                tokens.values[:, 0],
                tokens.log_distributions,
                lambda: log_probs,
            )
        with self.lm.autocast():
            states = self._states(self.lm, turns)
            logits = self.lm.backbone.logits(states).float()
        log_probs = self._log_probs(logits, [ids for turn in turns for ids in turn.among])
        chosen = torch.tensor([token for turn in turns for token in turn.tokens], device=logits.device)
        mask = torch.arange(actions.shape[1]) < torch.tensor([[len(turn.tokens)] for turn in turns])
        mask = mask.to(logits.device)
        evaluation = Evaluation.of(log_probs, chosen, self.value_head(states.float()))
        of_tokens = spread(evaluation.log_probs, mask)
        return Evaluation(
            of_tokens,
            spread(evaluation.entropies, mask),
            spread(evaluation.values, mask),
            lambda: spread(log_probs, mask),
            lambda: of_tokens,
        )

    @torch.no_grad()
    def reference_log_probs(self, observations: Sequence[Any], actions: Tensor) -> Tensor | None:
        """Of each token of `Turn`s, ``(batch, num_tokens)`` as are ``actions``; None without a reference."""
        if self.reference is None:
            return None
        among = [ids for turn in observations for ids in turn.among]
        mask = torch.arange(actions.shape[1]) < torch.tensor([[len(turn.tokens)] for turn in observations])
        chosen, parts = actions[mask], []
        with self.reference.model() as lm, lm.autocast():
            states = self._states(lm, observations)
            for first in range(0, len(states), _ROWS):
                rows = slice(first, first + _ROWS)
                logits = lm.backbone.logits(states[rows]).float()
                log_probs = self._log_probs(logits, among[rows])
                parts.append(log_probs.gather(1, chosen[rows, None].to(log_probs.device))[:, 0])
        return spread(torch.cat(parts), mask.to(states.device))

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs | None:
        """Of one that is guided and does not think; what another does is not known before it is written."""
        return self.distributions(observations) if self._form.plain else None

    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        scores = lm.score_guided(prompts, actions, self.temperature)
        return scores.log_probs, scores.state

    def work(self, observations: Sequence[Any]) -> Sequence[Work] | None:
        seen = [one.observation if isinstance(one, Turn) else one for one in observations]
        return super().work(seen)

    def _log_probs(self, logits: Tensor, among: Sequence[Among]) -> Tensor:
        """``(num_tokens, vocabulary)``: of what each token is chosen among."""
        return log_probs_among(logits, among, self.temperature, self._form.ends)

    def _states(self, lm: LanguageModel, turns: Sequence[Turn]) -> Tensor:
        """``(number of tokens, hidden)``: the states that predict each turn's tokens."""
        prompts = self.read([turn.observation for turn in turns])
        growing = not any(isinstance(prompt, str) for prompt in prompts)
        return answer_states(lm, lm.prompt_tokens(prompts), [turn.tokens for turn in turns], growing)


def _numbers(num_answers: int, num_tokens: int, generator: torch.Generator | None) -> Tensor:
    """``(num_answers, num_tokens)`` float64 in [0, 1): of each answer a stream of its own, from one draw.

    So an answer does not depend on how long others become, nor on how envs are spread over processes.
    """
    seeds = torch.rand(num_answers, dtype=torch.float64, generator=generator)
    streams = [np.random.default_rng(int(seed * 2**53)).random(num_tokens) for seed in seeds.tolist()]
    return torch.from_numpy(np.stack(streams))
