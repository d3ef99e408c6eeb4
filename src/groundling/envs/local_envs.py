"""Envs in this process, with the same interface as envs in worker processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from groundling.envs.worker_pool import EnvLost
from groundling.errors import GroundlingError, foreign


class EnvRaised(Exception):
    """An env in this process raised an exception (``__cause__``), such as ``SystemExit`` from ``sys.exit``."""


@dataclass
class LocalEnvs:
    """Envs in this process."""

    envs: Sequence[gymnasium.Env[Any, Any]]
    warn: Callable[[str], None]
    _commands: dict[int, tuple[str, Any]] = field(default_factory=dict)  # by env

    def send(self, env: int, command: str, value: Any) -> None:
        """Store a command for `receive` to execute."""
        self._commands[env] = command, value

    def receive(self, env: int) -> Any:
        """Execute an env's command. Raise `EnvRaised` if the env raises anything other than a `GroundlingError` (such
        as `EnvLost`).
        """
        command, value = self._commands[env]
        try:
            return self.envs[env].step(value) if command == "step" else self.envs[env].reset(seed=value)
        except EnvLost as lost:
            self.warn(f"env {env} {lost}")
            raise
        except (GroundlingError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an env that calls sys.exit() must not end training
            raise EnvRaised from error

    def close(self) -> None:
        for number, env in enumerate(self.envs):
            with foreign(f"env {number} ({env}), while being closed,"):
                env.close()
