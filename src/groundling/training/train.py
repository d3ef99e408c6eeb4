"""Train a run from its config, after cloning demonstrations if the config requires it."""

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from rich.console import Console

from groundling.algorithms.bc import BehaviouralCloning
from groundling.config.checks import check
from groundling.config.facts import shareable
from groundling.config.schema import CloningConfig, Config
from groundling.errors import RunError, warn_caller
from groundling.fields import flat
from groundling.registry import ComponentConfig
from groundling.runtime.processes import Processes
from groundling.training import checkpoint
from groundling.training.build import check_suits, world_of
from groundling.training.checkpoint import CLONE, DEMONSTRATIONS, open_run, write_settings
from groundling.training.defaults import in_force
from groundling.training.tracking import METRICS
from groundling.training.trainer import Trainer
from groundling.worlds.protocols import episode_recorder
from groundling.worlds.world import Demonstrator, Player

_CLONE_CHECKPOINTS = 10  # Approximate number of checkpoints written by the clone's run


def train(config: Config, console: Console, warn: Callable[[str], None] = warn_caller) -> bool:
    """Train or resume the run that ``config`` describes.

    Returns:
        True if the run is complete, False if it was stopped early (Ctrl-C, SIGTERM).

    Raises:
        GroundlingError: The run cannot start or resume. The last checkpoint is kept.
    """
    check(config)
    world = world_of(config)
    check_suits(config.policy, config.model, config.algorithm, world)
    config = config.model_copy(update={"world": world.settled()})
    processes = Processes.join(world.device)
    console = console if processes.is_main else Console(quiet=True)
    with ExitStack() as stack:
        folder = processes.from_main(lambda: stack.enter_context(open_run(Path(config.run_dir), config.model_dump())))
        start = None
        if config.chosen and not (folder / METRICS).exists() and (chosen := in_force(config)):
            console.print("settings chosen for the model and the world; overrides take precedence", highlight=False)
            console.print(*(f"  {line}" for line in chosen), sep="\n", highlight=False, soft_wrap=True)
        if config.cloning.episodes is not None:
            start = _clone(config, processes, console, warn)
            if start is None:
                return False
        return _loop(Trainer(config, folder, warn, processes, start), console)


def clone_of(config: Config) -> Config:
    """Return the config of the run that clones a run's demonstrations; each update of the clone is one minibatch."""
    folder, cloning = Path(config.run_dir), config.cloning
    world = episode_recorder(world_of(config)).learning_from(folder / DEMONSTRATIONS)
    size = cloning.args.get("minibatch_size", BehaviouralCloning.minibatch_size)
    changes = {
        "name": f"{config.name}-clone",
        "run_dir": str(folder / CLONE),
        "world": world.model_copy(update={world.ROWS: size, world.STEPS: 1}),
        "reward": {},
        "algorithm": ComponentConfig(id="bc", args=cloning.args),
        "cloning": CloningConfig(),
        "training": config.training.model_copy(update={"epochs": cloning.epochs}),
    }
    return config.model_copy(update=changes)


def _clone(config: Config, processes: Processes, console: Console, warn: Callable[[str], None]) -> Path | None:
    """Record demonstrations and clone them; return the clone's last checkpoint, or None if it was stopped early."""
    clone, world, episodes = clone_of(config), world_of(config), config.cloning.episodes
    assert episodes is not None
    check_suits(clone.policy, clone.model, clone.algorithm, world_of(clone))
    world.check_player(Player(config.cloning.agent))
    folder = Path(config.run_dir)
    checkpoints = Path(clone.run_dir) / "checkpoints"
    last = processes.from_main(lambda: checkpoint.latest(checkpoints, warn))
    if last is not None and checkpoint.is_last(last, clone.training.steps, clone.training.epochs):
        return last
    if last is None and checkpoint.list_checkpoints(folder / "checkpoints"):
        raise RunError(f"{checkpoints}, from which {folder} started, is missing: restore it")
    processes.from_main(lambda: write_settings(folder, config.model_dump()))
    console.print(f"recording {episodes} episodes of {config.cloning.agent} to clone", highlight=False)
    player = Demonstrator(
        config.cloning.agent, world=world, settings=flat(shareable({"seed": config.seed, "world": world.settings}))
    )
    recorder = episode_recorder(world)
    processes.from_main(lambda: recorder.record_episodes(player, episodes, folder / DEMONSTRATIONS))
    per_epoch = recorder.recorded(folder / DEMONSTRATIONS).transitions / clone.world.num_rows
    every = max(1, round(per_epoch * config.cloning.epochs / _CLONE_CHECKPOINTS))
    clone = clone.model_copy(update={"training": clone.training.model_copy(update={"checkpoint_every": every})})
    with ExitStack() as stack:
        clone_folder = processes.from_main(
            lambda: stack.enter_context(open_run(Path(clone.run_dir), clone.model_dump()))
        )
        if not _loop(Trainer(clone, clone_folder, warn, processes), console):
            return None
    return processes.from_main(lambda: checkpoint.latest(checkpoints, warn))


def _loop(trainer: Trainer, console: Console) -> bool:
    """Run the loop until it is complete (return True) or a signal asks it to stop (return False).
    The first Ctrl-C or SIGTERM stops the run after the current update; a second one stops it immediately. Python
    delivers signals only to the main thread, so a run in another thread cannot be stopped by them.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print("finishing this update, then stopping; interrupt again to stop immediately", highlight=False)

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        return trainer.loop(console, lambda: asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
