"""Policies that generate each action token by token, optionally after a thought."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from groundling.envs.text_env import TextObservation, WorldSpec
from groundling.fields import Ge, OnlyWith, ReadByModel
from groundling.lm import LanguageModel, Prompts
from groundling.lm.language_model import Among, answer_states, log_probs_among, states_after
from groundling.lm.write.sampling import draw
from groundling.policies import arguments
from groundling.policies.action_scoring import ActionTextPolicy
from groundling.policies.answer import Answer, AnswerRules
from groundling.policies.policy import Action, Evaluated, Outputs, Turn, TurnTokens, Work, policies
from groundling.policies.prompt_policy import TokenMask
from groundling.policies.text_states import scatter


@policies.register("action_writing")
class ActionWritingPolicy(ActionTextPolicy):
    """π(a | prompt) = Π_t P(a_t | prompt, a_<t, admissible continuations): guided decoding.

    At each step, only tokens that continue an admissible action are allowed, with renormalised probabilities
    (Outlines, arXiv 2307.09702; the trie is GENRE's, arXiv 2010.00904). An action that is a prefix of another (such as
    "go" and "go left") can end with any of the model's end tokens; their probabilities are summed. Actions with equal
    tokens share one probability. One pass computes the probabilities of all actions (`LanguageModel.score_guided`).

    ``action_scoring`` applies a softmax to whole actions instead, which yields a different distribution
    (Grammar-Aligned Decoding, arXiv 2405.21047). Here, tokens without an alternative do not lower an action's
    probability: with "wait" and three actions that start with "take", the first choice is between two tokens.
    """

    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        scores = lm.score_guided(prompts, actions, self.temperature)
        return scores.log_probs, scores.state


_ROWS = 256  # Number of tokens whose logits are computed at once without gradients


@policies.register("action_generating")
class ActionGeneratingPolicy(TokenMask, ActionWritingPolicy):
    """An agent that generates turns token by token: P(turn | prompt) = Π_t P(token_t | prompt, tokens before it).

    With ``thought_ends``, it thinks before it acts (ReAct, arXiv 2210.03629): it generates a thought until that string
    appears, and then its action. If a thought reaches ``max_thought_tokens`` first, the string is inserted.

    If ``guided``, only continuations of admissible actions are allowed, as in ``action_writing``, with the same
    probabilities if there is no thought. Otherwise, the action is generated without constraints, up to an end token, a
    line break, or ``max_action_tokens``. It is valid if its tokens are those of an admissible action, or if it matches
    one up to case, whitespace and surrounding punctuation (see `find_action`). Invalid answers are replaced with
    ``invalid_action``; their rate is logged as ``invalid_actions``.

    Where any text is an action, the env receives everything generated after the thought, which may span several lines,
    up to an end token, a ``stop`` string, or ``max_action_tokens``. Surrounding whitespace is removed.

    Log-probabilities are those of the sampling distribution, after temperature and guidance; they are 0 for inserted
    tokens. Prompts contain past actions as the env records them, but no past thoughts.

    NLPO's mask applies to tokens that guidance does not restrict. The policy and the reference evaluate these tokens
    under the mask used for sampling. Demonstrations are not masked.

    If several actions match the generated tokens, one is sampled uniformly. Its probability is included in
    `Action.log_probs`, but not in the log-probabilities of tokens. Demonstrated actions have no thoughts.

    Args:
        lm, reference, prompt, language, replacements, system: See `ActionTextPolicy`.
        value_hidden_sizes: Widths of the value head's hidden layers. The head computes a value before each token.
        temperature: Divides the token logits.
        guided: Allow only admissible actions. If None, do so wherever the observation lists them.
        max_action_tokens: Maximum number of tokens in an unguided action. If None, 64 is used where any text is an
            action, else 16, or the length of the longest admissible action plus its end token if that is more.
        stop: Strings that end an action where actions are free text; they are not part of it.
        invalid_action: Replaces invalid answers. If None or not admissible, the first admissible action is used.
        thought_begins: String inserted before a thought.
        thought_ends: String that ends a thought. If None, there are no thoughts.
        max_thought_tokens: Maximum number of tokens in a thought. If None, 48 is used.
        mask_type, top_mask, min_tokens_to_keep: NLPO's mask; see `TokenPolicy`.
    """

    writes_turns: ClassVar[bool] = True
    writes_text: ClassVar[bool] = True

    @classmethod
    def unused_argument(cls, args: Mapping[str, Any], world: WorldSpec) -> str | None:
        free = world.action == "free_text" or args.get("guided") is False or args.get("thought_ends")
        if args.get("mask_type") and not free:
            return (
                f"mask_type={args['mask_type']} does nothing: guidance leaves no token to mask; also set "
                "policy.args.guided=false or thought_ends, or remove it"
            )
        if world.action == "free_text":
            idle = [name for name in ("guided", "invalid_action") if args.get(name)]
            reason = f"any text is an action in {world.name}, and none is invalid; remove it"
        else:
            unguided = () if args.get("guided") is False else ("max_action_tokens", "stop")
            idle = [name for name in unguided if args.get(name)] or ["stop"] * bool(args.get("stop"))
            reason = f"{world.name} lists its actions; "
            reason += "remove it" if idle == ["stop"] else "also set policy.args.guided=false, or remove it"
        return f"{idle[0]}={args[idle[0]]} does nothing: {reason}" if idle else None

    def __init__(
        self,
        lm: arguments.TrainedModel,
        reference: arguments.ReferenceModel = None,
        prompt: str | Sequence[str] = "glam",
        language: arguments.Language = "english",
        replacements: arguments.Replacements = None,
        system: arguments.SystemPrompt = None,
        value_hidden_sizes: Sequence[int] = (1024, 1024),
        temperature: arguments.Temperature = 1.0,
        guided: bool | None = None,
        max_action_tokens: Annotated[int | None, Ge(1), OnlyWith("guided", (False, None))] = None,
        invalid_action: Annotated[str | None, ReadByModel, OnlyWith("guided", (False,))] = None,
        thought_begins: Annotated[str | None, ReadByModel, OnlyWith("thought_ends")] = None,
        thought_ends: Annotated[str | None, ReadByModel] = None,
        max_thought_tokens: Annotated[int | None, Ge(1), OnlyWith("thought_ends")] = None,
        stop: Annotated[Sequence[str] | None, ReadByModel] = None,
        mask_type: arguments.MaskKind = None,
        top_mask: arguments.TopMask = None,
        min_tokens_to_keep: arguments.MinTokens = None,
    ) -> None:
        super().__init__(lm, reference, prompt, language, replacements, system, value_hidden_sizes, temperature)
        self.rules = AnswerRules(
            lm,
            guided is not False,
            max_action_tokens,
            invalid_action,
            thought_begins,
            thought_ends,
            max_thought_tokens,
            stop,
        )
        self._mask = self.make_mask(mask_type, top_mask, min_tokens_to_keep)

    def read(self, observations: Sequence[TextObservation], prompts: Sequence[str] | None = None) -> Prompts:
        self.answer_tokens = self.rules.usual_tokens(any_text=not all(one.actions for one in observations))
        return super().read(observations, prompts)

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
        most = self.rules.max_tokens(observations, in_conversation)
        prompts = self.lm.prompt_tokens(read, most)
        answers = [
            self.rules.answer(seen.actions, in_conversation, () if self.lm.is_encoder_decoder else prompt)
            for seen, prompt in zip(observations, prompts, strict=True)
        ]
        # One number for each token, and one for choosing among actions with equal tokens.
        uniforms = None if deterministic else _uniforms(len(answers), most + 1, generator)
        self._write(answers, prompts, uniforms)
        log_shares = torch.zeros(len(answers))
        for i, answer in enumerate(answers):
            equal = [] if answer.invalid else answer.choices.equal(answer.action)
            if len(equal) > 1 and uniforms is not None:
                answer.action = equal[int(uniforms[i, len(answer.tokens)] * len(equal))]
            log_shares[i] = -math.log(max(1, len(equal)))
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

    def _write(self, answers: Sequence[Answer], prompts: Sequence[list[int]], uniforms: Tensor | None) -> None:
        """Generate all answers in parallel, token by token; without ``uniforms``, take the most likely tokens."""
        writing = list(range(len(answers)))
        while writing:
            with self.lm.autocast():
                states = states_after(self.lm, [prompts[i] for i in writing], [answers[i].tokens for i in writing])
                logits = self.lm.backbone.logits(states).float()
            values = self.value_head(states.float())
            among = [answers[i].allowed for i in writing]
            if self._mask is not None and None in among:
                among = self._masked([answers[i] for i in writing], [prompts[i] for i in writing], among, logits)
            log_probs = self._log_probs(logits, among)
            if uniforms is None:
                tokens = log_probs.argmax(-1)
            else:
                tokens = draw(log_probs, torch.stack([uniforms[i, len(answers[i].tokens)] for i in writing]))
            chosen = log_probs.gather(1, tokens[:, None])[:, 0]
            # float64 represents all three exactly, so one copy to the host is enough.
            columns = torch.stack([tokens.double(), chosen.double(), values.double()], dim=1).tolist()
            for i, allowed, (token, log_prob, value) in zip(writing, among, columns, strict=True):
                answers[i].write(int(token), log_prob, value, allowed)
            writing = [i for i in writing if not answers[i].ended]

    def _masked(
        self, answers: Sequence[Answer], prompts: Sequence[list[int]], among: Sequence[Among], logits: Tensor
    ) -> list[Among]:
        """Return the tokens allowed next, restricted by the mask where guidance does not restrict them."""
        assert self._mask is not None
        if self.mask_lm is not None:
            with self.mask_lm.autocast():
                states = states_after(self.mask_lm, prompts, [answer.tokens for answer in answers])
                logits = self.mask_lm.backbone.logits(states).float()
        # One end token represents all of them (see `log_probs_among`).
        others = [{*self.rules.ends} - {answer.choices.end} for answer in answers]
        masks = zip(among, self._mask(logits).cpu(), others, strict=True)
        return [
            tuple(token for token in allowed.nonzero()[:, 0].tolist() if token not in other) if ids is None else ids
            for ids, allowed, other in masks
        ]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        with super().unchanged(), nullcontext() if self.mask_lm is None else self.mask_lm.keeping():
            yield

    def evaluate(self, observations: Sequence[Any], actions: Tensor) -> Evaluated:
        """Compute log-probabilities, entropies and values of turns, or of demonstrated actions.

        Args:
            observations: `Turn`s, or observations from a dataset (turns without tokens if actions are free text).
            actions: int64, the turns' tokens ``(batch, num_tokens)`` or action indices ``(batch,)``. Results have the
                same shape. Entropies and values of tokens that had no alternative are meaningless.
        """
        if not isinstance(observations[0], Turn) or observations[0].is_demonstrated:
            return self._evaluate_demonstrated(observations, actions)
        with self.lm.autocast():
            states = self._states(self.lm, observations)
            logits = self.lm.backbone.logits(states).float()
        log_probs = self._log_probs(logits, [ids for turn in observations for ids in turn.among])
        chosen = torch.tensor([token for turn in observations for token in turn.tokens], device=logits.device)
        mask = _token_mask(observations, actions.shape[1]).to(logits.device)
        evaluation = Evaluated.of(log_probs, chosen, self.value_head(states.float()))
        of_tokens = scatter(evaluation.log_probs, mask)
        return Evaluated(
            of_tokens,
            scatter(evaluation.entropies, mask),
            scatter(evaluation.values, mask),
            lambda: scatter(log_probs, mask),
            lambda: of_tokens,
        )

    def _evaluate_demonstrated(self, observations: Sequence[Any], actions: Tensor) -> Evaluated:
        indices: list[int] = actions.tolist()
        texts = [one.action if isinstance(one, Turn) else None for one in observations]
        seen = [one.observation if isinstance(one, Turn) else one for one in observations]
        in_conversation = not isinstance(self.read(seen[:1])[0], str)
        turns = [
            self.rules.plain_turn(one, index if text is None else text, in_conversation)
            for one, index, text in zip(seen, indices, texts, strict=True)
        ]
        known = [self.rules.action_tokens(one.actions, in_conversation) for one in seen]
        copies = torch.tensor([len(one.equal(index)) for one, index in zip(known, indices, strict=True)])
        width = max(len(turn.tokens) for turn in turns)
        tokens = self.evaluate(turns, torch.zeros(len(turns), width, dtype=torch.long))
        log_probs = tokens.log_probs.sum(-1) - copies.log().to(tokens.log_probs)
        return Evaluated(
            log_probs, tokens.entropies.sum(-1), tokens.values[:, 0], tokens.log_distributions, lambda: log_probs
        )

    def without_action(self, turn: Turn) -> Turn:
        """Return the part of a turn up to the end of its thought."""
        read = self.read([turn.observation])
        prompt = () if self.lm.is_encoder_decoder else self.lm.prompt_tokens(read)[0]
        answer = self.rules.answer(turn.observation.actions, not isinstance(read[0], str), prompt)
        while answer.thinks or answer.inserted:
            answer.write(turn.tokens[len(answer.tokens)])
        count = len(answer.tokens) - len(answer.action_ids)
        return replace(turn, tokens=turn.tokens[:count], among=turn.among[:count])

    @torch.no_grad()
    def reference_log_probs(self, observations: Sequence[Any], actions: Tensor) -> Tensor | None:
        """Return the log-probabilities of the turns' tokens, ``(batch, num_tokens)``; None without a reference."""
        if self.reference is None:
            return None
        among = [ids for turn in observations for ids in turn.among]
        mask = _token_mask(observations, actions.shape[1])
        chosen, parts = actions[mask], []
        with self.reference.model() as lm, lm.autocast():
            states = self._states(lm, observations)
            for first in range(0, len(states), _ROWS):
                rows = slice(first, first + _ROWS)
                logits = lm.backbone.logits(states[rows]).float()
                log_probs = self._log_probs(logits, among[rows])
                parts.append(log_probs.gather(1, chosen[rows, None].to(log_probs.device))[:, 0])
        return scatter(torch.cat(parts), mask.to(states.device))

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs | None:
        """Return the outputs of a guided policy without thoughts; None for others, which must generate text first."""
        only_action = self.rules.guided and self.rules.thought_ends is None
        return self.distributions(observations) if only_action and all(one.actions for one in observations) else None

    def weight_files(self) -> dict[str, dict[str, Tensor]]:
        return super().weight_files() | self.mask_files()

    def work(self, observations: Sequence[Any]) -> Sequence[Work]:
        return super().work([one.observation if isinstance(one, Turn) else one for one in observations])

    def _log_probs(self, logits: Tensor, among: Sequence[Among]) -> Tensor:
        return log_probs_among(logits, among, self.temperature, self.rules.ends)

    def _states(self, lm: LanguageModel, turns: Sequence[Turn]) -> Tensor:
        """Return the states that predict each turn's tokens, ``(number of tokens, hidden)``."""
        prompts = self.read([turn.observation for turn in turns])
        growing = not any(isinstance(prompt, str) for prompt in prompts)
        return answer_states(lm, lm.prompt_tokens(prompts), [turn.tokens for turn in turns], growing)


def _token_mask(turns: Sequence[Turn], width: int) -> Tensor:
    """Return a bool mask ``(num_turns, width)``, True where a turn has a token."""
    return torch.arange(width) < torch.tensor([[len(turn.tokens)] for turn in turns])


def _uniforms(num_answers: int, num_tokens: int, generator: torch.Generator | None) -> Tensor:
    """Sample float64 ``(num_answers, num_tokens)`` in [0, 1), with a separately seeded stream for each answer."""
    # This makes an answer independent of the lengths of other answers and of how envs are split over processes.
    seeds = torch.rand(num_answers, dtype=torch.float64, generator=generator)
    streams = [np.random.default_rng(int(seed * 2**53)).random(num_tokens) for seed in seeds.tolist()]
    return torch.from_numpy(np.stack(streams))
