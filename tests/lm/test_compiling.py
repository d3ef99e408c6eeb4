"""`torch.compile` changes only the speed."""

import shutil

import pytest
import torch

from groundling.lm import backbone
from groundling.policies import TokenPolicy
from tests.lm.families import CONFIGS
from tests.policies.writing import ending_often, prompts, uniforms
from tests.thorough import thorough

_LAYERS = {"gpt2": {"n_layer": 1}, "t5": {"num_layers": 1, "num_decoder_layers": 1}}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize(
    "family, backend, value",
    [("gpt2", "eager", "shared"), *thorough(("t5", "eager", "shared"), ("gpt2", "inductor", "separate"))],
)
def test_compiled_models_read_the_same(make_lm, family, backend, value, monkeypatch):
    """The backend `eager` captures and runs any shape; generating C++ for T5 would take a minute."""
    compile = torch.compile(backbone._last_states, dynamic=True, backend=backend)
    monkeypatch.setattr(backbone, "_compiled", lambda: compile)
    config = CONFIGS[family]().__class__(**CONFIGS[family]().to_diff_dict() | _LAYERS[family])
    monkeypatch.setitem(CONFIGS, family, lambda: config)
    plain = TokenPolicy(ending_often(make_lm(family)), value=value)
    compiled = TokenPolicy(ending_often(make_lm(family, compiled=True)), value=value)
    compiled.value_head.load_state_dict(plain.value_head.state_dict())
    for count in (4, 7):  # the same program is used for both
        asked, numbers = prompts(count, seed=count), uniforms(count, 5)
        written = plain.write(asked, numbers)
        expected, outputs = (_read(policy, written) for policy in (plain, compiled))
        for name, tensor in expected.items():
            torch.testing.assert_close(outputs[name], tensor, atol=1e-4, rtol=1e-4, msg=name)
        with torch.compiler.set_stance("fail_on_recompile"):
            decoded = compiled._decoder([p.ids for p in asked], compiled.sampling, numbers)
            assert _read(compiled, written).keys() == expected.keys()
        assert torch.equal(decoded.tokens, written.actions.T[:, : decoded.tokens.shape[1]])


def _read(policy, written):
    """Return log-probabilities and values of texts, and the gradients of all weights."""
    policy.zero_grad()
    seen = policy.evaluate(written.observations, written.actions.T)
    (seen.log_probs.sum() + seen.values.square().sum()).backward()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    return {"log_probs": seen.log_probs.detach(), "values": seen.values.detach(), **gradients}
