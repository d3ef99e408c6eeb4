"""Importing Groundling has no effects outside the package."""

import json
import subprocess
import sys

_COMPARE = """
import importlib, json, logging, os, random, sys, warnings
import gymnasium, minigrid, numpy, torch, transformers
from transformers.utils import logging as transformers_logging

def state():
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    loggers = {"": logging.root} | {name: logging.getLogger(name) for name in logging.root.manager.loggerDict}
    loggers = {name: one for name, one in loggers.items() if not name.startswith("groundling")}
    return {
        "environment": dict(os.environ),
        "warnings": [str(one) for one in warnings.filters],
        "logging": {n: (one.level, one.disabled, len(one.handlers)) for n, one in loggers.items()},
        "transformers": (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()),
        "random": (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "attention": {name: getattr(cuda, name)() for name in dir(cuda) if name.endswith("sdp_enabled")},
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        "mkldnn": torch.backends.mkldnn.enabled if hasattr(torch.backends.mkldnn, "enabled") else None,
        "precision": (torch.get_float32_matmul_precision(), cuda.matmul.allow_tf32, str(torch.get_default_dtype())),
        "modes": (torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "hooks": (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__),
        "path": list(sys.path),
    }

before, changed = state(), {}
for module in sys.argv[1:]:
    importlib.import_module(module)
    after = state()
    after["logging"] = {name: one for name, one in after["logging"].items() if name in before["logging"]}
    changed |= {f"{module}: {name}": after[name] for name in before if before[name] != after[name]}
print(json.dumps(changed))
"""


def test_imports_change_no_global_state() -> None:
    """PyTorch's switches, the environment, warning filters, logging, random states and Python's path do not change."""
    command = [sys.executable, "-c", _COMPARE, "groundling", "groundling.policies", "groundling.lm"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == {}
