"""What the tests of generalisation change, and what they leave alone."""

import pytest

from groundling.configs.compose import changed, compose
from groundling.evaluation.suites import SUITES


@pytest.mark.parametrize("suite", ["pick-up-then-go-to", "pick-up-then-pick-up"])
def test_a_sequence_is_asked_among_as_many_other_things(suite: str) -> None:
    for args, left in (({"task": "pickup", "num_dists": 0}, {"num_dists": 0}), ({"draw_task": "reset"}, {})):
        config = compose("demo", ["~env.args", f"env.args={args}".replace("'", "")])
        world = changed(config, SUITES[suite].changes(config.env.args)).env
        assert world.id.startswith("BabyAI-PickUp") and world.args == left
