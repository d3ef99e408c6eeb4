"""Policies in worlds where actions are free text."""

from typing import Any

import pytest
import torch

from groundling.config.compose import compose
from groundling.envs.text_env import TextObservation, WorldSpec
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionGeneratingPolicy
from groundling.policies.answer import Answer, AnswerRules
from groundling.policies.policy import Turn, policies
from groundling.prompts import PromptReader, prompts
from groundling.prompts.prompt import Conversation
from groundling.training.build import check_suits, world_of
from tests.envs import doors, echo  # noqa: F401  (register test/Doors-v0 and test/Echo-v0)

_SEEN = [
    TextObservation("say it", (("The word is red",),), (), (), {}),
    TextObservation("say it", (("The word is red",), ("You said x",)), ("x",), (), {}),
]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return LanguageModel.from_pretrained("starter-causal")


def _written(lm: LanguageModel, text: str, ends: bool = False, **args: Any) -> Answer:
    answer = AnswerRules(lm, **args).answer(())
    for token in [*lm.candidate_tokens([text])[0], *([lm.end_tokens.ids[0]] if ends else [])]:
        if not answer.ended:
            answer.write(token)
    return answer


@pytest.mark.parametrize(
    ("text", "args", "action"),
    [
        ("go left", {}, "go left"),
        ("go left\n  now\n", {}, "go left\n  now"),  # several lines
        ("go left\nnow", {"stop": ["\n"]}, "go left"),
        ("go left. now; then", {"stop": [";", "."]}, "go left"),  # the first one
        ("it is. Action: go left", {"thought_ends": "Action:"}, "go left"),
        ("it is. Action: go; left", {"thought_ends": "Action:", "stop": [";"]}, "go"),
    ],
)
def test_an_answer_ends_where_the_rules_say(lm: LanguageModel, text: str, args: Any, action: str) -> None:
    answer = _written(lm, text, ends=True, **args)
    assert answer.ended and not answer.invalid
    turn = answer.turn(_SEEN[0])
    assert turn.action == action and not turn.is_demonstrated


def test_an_answer_is_limited_in_tokens(lm: LanguageModel) -> None:
    answer = _written(lm, "go left and go right", max_action_tokens=3)
    assert answer.ended and len(answer.tokens) == 3 and answer.action_text == "go left and"
    assert len(_written(lm, "go left " * 40).tokens) == 64
    with pytest.raises(ConfigError, match=r"policy\.args\.stop=\[''\]"):
        AnswerRules(lm, stop=[""])


@pytest.mark.parametrize("starter", ["starter", "starter-causal"])
@pytest.mark.parametrize("prompt", ["brief", "conversation"])
def test_turns_are_evaluated_as_they_were_sampled(starter: str, prompt: str) -> None:
    if (starter, prompt) == ("starter", "conversation"):
        pytest.skip("an encoder-decoder reads no conversations")
    torch.manual_seed(0)
    model = LanguageModel.from_pretrained(starter)
    policy = ActionGeneratingPolicy(
        model, prompt=prompt, value_hidden_sizes=(8,), max_action_tokens=4, stop=["."], temperature=2.0
    )
    with policy.unchanged():
        action = policy.act(_SEEN, generator=torch.Generator().manual_seed(0))
    assert action.turns is not None and action.tokens is not None
    assert action.chosen == [turn.action for turn in action.turns] and policy.outputs(_SEEN) is None
    evaluated = policy.evaluate(action.turns, action.tokens.ids)
    torch.testing.assert_close(evaluated.log_probs.detach(), action.tokens.log_probs, atol=2e-5, rtol=0)
    demonstrated = [Turn(seen, (), (), action=text) for seen, text in zip(_SEEN, ["red", "blue"], strict=True)]
    log_probs = policy.evaluate(demonstrated, torch.zeros(2, dtype=torch.long)).log_probs
    ended = [[*model.candidate_tokens([turn.action])[0], model.end_tokens.of_text] for turn in demonstrated]
    turns = [
        Turn(turn.observation, tuple(ids), (None,) * len(ids)) for turn, ids in zip(demonstrated, ended, strict=True)
    ]
    width = max(map(len, ended))
    expected = policy.evaluate(turns, torch.zeros(2, width, dtype=torch.long)).log_probs.sum(-1)
    torch.testing.assert_close(log_probs, expected)


@pytest.mark.parametrize("id", sorted(prompts))
def test_prompts_read_well_without_actions_and_with_tools(id: str) -> None:
    listed = TextObservation("win", (("a",),), (), ("left",), {})
    free = TextObservation("win", (("a",),), (), (), {})
    with_list, without = (PromptReader(id)(one) for one in (listed, free))
    assert "left" not in without and len(without) <= len(with_list)
    assert not any(
        line.rstrip().endswith(("Actions:", "Possible action of the agent:")) for line in without.split("\n")
    )
    tool = next(iter(_TOOLS))
    reading = PromptReader(id).read(TextObservation("win", (("a",),), (), (), {}, tools=(tool,)))
    if isinstance(reading, Conversation):
        assert reading.tools == (tool,) and "buy(number: integer): Buy bread." in reading.messages()[0]["content"]
    else:
        assert reading.startswith("You can call tools:\nbuy(number: integer): Buy bread.\n") and without in reading


_TOOLS = (
    '{"type": "function", "function": {"name": "buy", "description": "Buy bread.", "parameters": {"type": "object", '
    '"properties": {"number": {"type": "integer", "description": "How many."}}, "required": ["number"]}}}',
)


@pytest.mark.parametrize(
    ("env", "words", "message"),
    [
        ("test/Echo-v0", {"guided": True}, r"guided=True does nothing: any text is an action in test/Echo-v0"),
        ("test/Echo-v0", {"guided": False, "invalid_action": "wait"}, "invalid_action=wait does nothing: any text is"),
        ("test/Doors-v0", {"stop": ["."]}, r"stop=\['.'\] does nothing: test/Doors-v0 lists its actions; remove it"),
        ("test/Doors-v0", {"max_action_tokens": 5}, "max_action_tokens=5 does nothing.*policy.args.guided=false"),
        ("test/Echo-v0", {"max_action_tokens": 5, "stop": ["."]}, None),
        ("test/Doors-v0", {"max_action_tokens": 5, "guided": False}, None),
    ],
)
def test_arguments_without_effect_are_refused(env: str, words: dict[str, Any], message: str | None) -> None:
    args = [f"+policy.args.{key}={value}" for key, value in words.items()]
    overrides = [f"world.env={env}", "~world.args", "~policy.args", "policy.id=action_generating", *args]
    config = compose("demo", overrides)
    world = world_of(config)
    if message is None:
        check_suits(config.policy, config.model, config.algorithm, world)
        return
    with pytest.raises(ConfigError, match=message):
        check_suits(config.policy, config.model, config.algorithm, world)


@pytest.mark.parametrize("id", ["action_scoring", "action_writing", "action_head", "drrn", "random"])
def test_policies_that_choose_from_a_list_are_refused(id: str) -> None:
    spec = WorldSpec("Free-v0", frozenset({"words"}), "free_text")
    assert "Free-v0 accepts any text as an action and lists none" in str(policies.get(id).accepts(spec))  # type: ignore[attr-defined]
