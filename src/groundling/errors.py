"""Errors whose message is meant for the user: the command line prints them as one line."""


class GroundlingError(Exception):
    """Something the user can mend; the message says what was wrong, what was expected, and how."""


class ConfigError(GroundlingError):
    """A key, a value, an id or a combination of them that cannot be run."""


class UnusedKey(ConfigError):
    """A key that is set, and that nothing which the config chooses uses."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class RunError(GroundlingError):
    """A run that cannot go on: its folder, its checkpoints, its device or its figures."""
