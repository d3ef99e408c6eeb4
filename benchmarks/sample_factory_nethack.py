r"""Run sample-factory on the task and network of benchmarks/nethack_training.py, which starts this script.

Sample-factory requires numpy 1 and other packages, so it needs a separate environment next to groundling's:

    python -m venv --without-pip VENV
    .venv/bin/python -m pip install --no-deps --target VENV/lib/python3.11/site-packages sample-factory==2.1.1 \
        signal-slot-mp faster-fifo colorlog tensorboardX threadpoolctl opencv-python-headless "numpy<2" wandb psutil \
        pygame
    printf '%s\n' "$PWD/.venv/lib/python3.11/site-packages" "$PWD/src" > VENV/lib/python3.11/site-packages/zz_shared.pth
    VENV/bin/python benchmarks/sample_factory_nethack.py --seconds 20

The third command shares groundling, torch, nle and gymnasium with groundling's environment (sample-factory requires
gymnasium below 1, but runs with 1.2). Its wheel does not include its NetHack example. As in that example, the agent
observes an image of 72 x 72 pixels, which the workers render with one table per process.

The script prints one line of JSON with the frames per second and CPU microseconds per frame of all processes.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from typing import Any

import gymnasium
import numpy as np
import psutil
import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner
from torch import Tensor, nn

from groundling.envs.nethack import ACTIONS, make_task
from groundling.envs.nethack.observation import vector_features, window
from groundling.envs.nethack.rendering import render

NUM_ENVS, NUM_STEPS = 64, 32


class Pixels(gymnasium.Env[dict[str, np.ndarray], Any]):
    """Groundling's score task with an image, numbers and the message as observations."""

    action_space = gymnasium.spaces.Discrete(len(ACTIONS))
    observation_space = gymnasium.spaces.Dict(
        {
            "obs": gymnasium.spaces.Box(0, 255, (3, 72, 72), np.uint8),
            "vector_obs": gymnasium.spaces.Box(-5, 5, (27,), np.float32),
            "message": gymnasium.spaces.Box(0, 255, (256,), np.uint8),
        }
    )
    render_mode = None

    def __init__(self) -> None:
        self.task = make_task("NetHackScore-v1")

    def reset(self, **_: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        self.task.begin()
        return self._observe(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = self.task.advance(int(action))
        observation = self._observe()
        if terminated or truncated:
            self.task.quit()
        return observation, reward, terminated, truncated, {}

    def _observe(self) -> dict[str, np.ndarray]:
        seen = self.task.arrays
        column, row = seen["blstats"][:2]
        chars = window(seen["tty_chars"], row + 1, column)
        colours = window(seen["tty_colors"], row + 1, column, fill=0) & 15
        vector = np.empty(27, np.float32)
        vector_features(seen["blstats"], vector)
        return {"obs": render(chars, colours), "vector_obs": vector, "message": seen["message"].copy()}


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Pixels:
    return Pixels()


class MotifEncoder(Encoder):
    """The encoders that precede the recurrent layer in Motif's network."""

    def __init__(self, cfg: Any, obs_space: Any) -> None:
        super().__init__(cfg)
        self.image = nn.Sequential(
            nn.Conv2d(3, 32, 8, stride=4),
            nn.ELU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ELU(),
            nn.Conv2d(64, 128, 3, stride=2),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(1152, 512),
            nn.ELU(),
        )
        self.vector = nn.Sequential(nn.Linear(27, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU())
        self.message = nn.Sequential(nn.Linear(256, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU())

    def forward(self, obs_dict: dict[str, Tensor]) -> Tensor:
        vector = obs_dict["vector_obs"]
        parts = [self.image(obs_dict["obs"].float() / 255), self.vector(vector), vector]
        return torch.cat([*parts, self.message(obs_dict["message"].float() / 255)], dim=-1)

    def get_out_size(self) -> int:
        return 795


class Stopwatch(AlgoObserver):
    """Counts frames and CPU time after the start of the learner."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begin: tuple[float, float, int] | None = None
        self.figures: dict[str, float] = {}

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        frames = sum(runner.env_steps.values())
        if training_iteration_since_resume < 3 or not frames:
            return
        now = time.monotonic(), _cpu_seconds(), frames
        if self.begin is None:
            self.begin = now
        elif now[0] - self.begin[0] > self.seconds and not self.figures:
            elapsed, spent, learned = (a - b for a, b in zip(now, self.begin, strict=True))
            self.figures = {"frames_per_second": learned / elapsed, "cpu_us_per_frame": 1e6 * spent / learned}
            runner.cfg.train_for_env_steps = 1  # enough


def _cpu_seconds() -> float:
    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children(recursive=True)]]
    return sum(t.user + t.system for t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    register_env("groundling_nethack", make_env)
    global_model_factory().register_encoder_factory(MotifEncoder)
    folder = tempfile.mkdtemp(prefix="sample-factory-")
    options = {
        "algo": "APPO",
        "env": "groundling_nethack",
        "experiment": "benchmark",
        "train_dir": folder,
        "device": "cpu",
        "num_workers": 2,
        "num_envs_per_worker": NUM_ENVS // 2,
        "worker_num_splits": 2,
        "rollout": NUM_STEPS,
        "recurrence": NUM_STEPS,
        "batch_size": NUM_ENVS * NUM_STEPS,
        "num_epochs": 1,
        "num_batches_per_epoch": 1,
        "use_rnn": True,
        "rnn_type": "gru",
        "rnn_size": 512,
        "nonlinearity": "elu",
        "normalize_input": False,
        "normalize_returns": False,
        "with_vtrace": False,
        "learning_rate": 1e-4,
        "max_grad_norm": 4.0,
        "train_for_env_steps": 10**9,
        "save_every_sec": 10**6,
        "set_workers_cpu_affinity": False,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    config_parser, _ = parse_sf_args(arguments)
    _, runner = make_runner(parse_full_cfg(config_parser, arguments))
    stopwatch = Stopwatch(seconds)
    runner.register_observer(stopwatch)
    try:
        runner.init()
        runner.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(stopwatch.figures), flush=True)
    sys.exit(0 if stopwatch.figures else 1)


if __name__ == "__main__":
    main()
