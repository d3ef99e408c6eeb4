"""With a server, BALROG's protocol plays the same episodes as the direct evaluation."""

import csv
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.evaluation.protocols import find_agent
from tests.serving.conftest import TOKEN, served

_PLAY = ["--protocol", "balrog-babyai", "--suite", "balrog-goto", "--episodes", "2", "evaluation.deterministic=true"]
_OPEN = ["~policy.args.guided", "~policy.args.max_action_tokens", "~policy.args.invalid_action"]


@pytest.mark.parametrize("guided", [True, False])
def test_balrog_through_a_server(guided: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    words = [*_PLAY, "evaluation.baselines=[]"]
    policy_args = _OPEN if guided else ["policy.args.max_action_tokens=4"]
    direct = ["starter-causal", *words, *policy_args, f"run_dir={tmp_path}/direct"]
    assert main(["evaluate", *direct]) == 0
    target = find_agent("starter-causal", "balrog-babyai", [], pytest.fail)
    policy = target.policy(target.agent)
    assert policy is not None
    with served(policy) as server:
        asked = [f"policy.args.model={server.name}", "policy.args.max_tokens=4", f"policy.args.guided={guided}"]
        assert main(["evaluate", f"{server.url}/v1", *words, *asked, f"run_dir={tmp_path}/served"]) == 0
    episodes = {}
    for name in ("direct", "served"):
        with (tmp_path / name / "evaluation/balrog-goto.csv").open() as file:
            episodes[name] = list(csv.DictReader(file))
    assert episodes["direct"] == episodes["served"] and len(episodes["direct"]) == 2
