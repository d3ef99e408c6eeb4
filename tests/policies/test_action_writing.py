"""The policy that writes an action: what it can write, its differences from scoring, and learning."""

import pytest
import torch

from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionScoringPolicy, ActionWritingPolicy

_SIGNS = ("go", "go left", "go left now", "wait")


def _see(*actions: str) -> TextObservation:
    return TextObservation("go left", (("You see a signpost",),), (), actions, {})


@pytest.fixture(scope="module")
def policy() -> ActionWritingPolicy:
    torch.manual_seed(0)
    lm = LanguageModel.from_pretrained("starter")
    return ActionWritingPolicy(lm, prompt="brief", value_hidden_sizes=(8,))  # this prompt does not list the actions


def test_written_answers_are_evaluated_as_they_were_drawn(policy: ActionWritingPolicy) -> None:
    """Test lists of one or hundreds of actions, with common prefixes, with common tokens, or with repetitions."""
    many = [f"take the {colour} {thing} {n}" for colour in ("red", "blue") for thing in "ab" for n in range(40)]
    seen = [_see(*_SIGNS), _see("wait"), _see(*many, "take"), _see("wait", "go", "wait"), _see(*_SIGNS[::-1])]
    generator = torch.Generator().manual_seed(0)
    for deterministic in (False, True):
        action = policy.act(seen, deterministic=deterministic, generator=generator)
        evaluated = policy.evaluate(seen, action.actions)
        torch.testing.assert_close(evaluated.log_probs.detach(), action.log_probs, atol=1e-5, rtol=0)
        torch.testing.assert_close(evaluated.values.detach(), action.values, atol=1e-5, rtol=0)
    outputs = policy.outputs(seen)
    for row, observation in zip(outputs.log_probs, seen, strict=True):
        assert row[: len(observation.actions)].isfinite().all()
        assert (row[len(observation.actions) :] == -torch.inf).all()
        assert row.exp().sum().item() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(outputs.log_probs[0, :4], outputs.log_probs[4, :4].flip(0), atol=1e-5, rtol=0)
    assert outputs.log_probs[3, 0] == outputs.log_probs[3, 2]  # the same text twice


def test_a_common_beginning_is_chosen_once() -> None:
    """If all tokens are equally likely, a branch is as likely as a single action; in scoring, length matters."""
    lm = LanguageModel.from_pretrained("starter-causal")
    with torch.no_grad():
        lm.model.get_output_embeddings().weight.zero_()
    seen = [_see("wait", "go left", "go right")]
    written = ActionWritingPolicy(lm).outputs(seen).log_probs[0].exp()
    torch.testing.assert_close(written, torch.tensor([0.5, 0.25, 0.25]))
    ended = ActionWritingPolicy(lm).outputs([_see("go", "go left")]).log_probs[0].exp()
    torch.testing.assert_close(ended, torch.tensor([0.5, 0.5]))
    assert ActionScoringPolicy(lm).outputs([_see("go", "go left")]).log_probs[0].exp()[0] > 0.99


def test_temperature_divides_the_logits_of_tokens(policy: ActionWritingPolicy) -> None:
    entropies = []
    for temperature in (0.5, 1.0, 4.0, 1e6):
        other = ActionWritingPolicy(policy.lm, temperature=temperature)
        entropies.append(other.evaluate([_see(*_SIGNS)], torch.tensor([0])).entropies.item())
    assert entropies == sorted(entropies)
    # Each token has probability 1/2: go or wait, the end or left, the end or now.
    halves = torch.tensor([1 / 4, 1 / 8, 1 / 8, 1 / 2])
    assert entropies[-1] == pytest.approx(-(halves * halves.log()).sum().item(), abs=1e-3)
    with pytest.raises(ConfigError, match="temperature must be greater than 0, got 0"):
        ActionWritingPolicy(policy.lm, temperature=0)
