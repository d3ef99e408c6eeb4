"""Progress counters of a run, and the entropy below which it is stopped while its episodes fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groundling.errors import RunError
from groundling.policies.policy import Policy
from groundling.worlds.episode import Episode

_UPDATES = 5
"""Consecutive updates below the floor before the run is stopped."""
_GOOD_SUCCESS_RATE = 0.95
"""A policy that succeeds this often may have a low entropy."""


@dataclass
class Counters:
    """Progress of a run."""

    update: int = 0
    step: int = 0
    episodes: int = 0
    seconds: float = 0.0
    low_entropy_updates: int = 0
    """See `EntropyFloor`."""

    def add(self, steps: int, episodes: int, seconds: float) -> None:
        """Count one update."""
        self.update += 1
        self.step += steps
        self.episodes += episodes
        self.seconds += seconds


class EntropyFloor:
    """Count of consecutive updates of an entropy below ``world.entropy_floor`` (in nats) in which episodes failed."""

    def __init__(self, floor: float, counters: Counters) -> None:
        self._floor, self._counters = floor, counters

    def count(self, episodes: Sequence[Episode], figures: Mapping[str, float]) -> None:
        """Count an update; one without episodes, or in a world without failure, says nothing."""
        if not episodes or any(e.success is None for e in episodes):
            return
        is_low = figures.get("entropy", 1.0) < self._floor
        fails = sum(bool(e.success) for e in episodes) / len(episodes) < _GOOD_SUCCESS_RATE
        self._counters.low_entropy_updates = self._counters.low_entropy_updates + 1 if is_low and fails else 0

    def check(self, row: Mapping[str, Any], policy: Policy) -> None:
        """Raise `RunError` with advice if the entropy has been too low for too long."""
        updates = self._counters.low_entropy_updates
        # A run resumed with a lower floor has the counter of the higher one, so the entropy is compared again.
        if row.get("entropy", 1.0) >= self._floor or updates < _UPDATES:
            return
        advice = "start again with a higher algorithm.args.entropy_coefficient or a lower learning_rate"
        since = f"for {_UPDATES} updates while episodes still fail: it no longer explores"
        if updates >= self._counters.update:  # from the beginning, which a lower learning rate does not change
            advice = policy.exploration_advice() or advice
            since = "from the first update on, while episodes fail: it never explored"
        raise RunError(
            f"the policy's entropy was below world.entropy_floor={self._floor} {since}. To fix it, {advice}; or set "
            "world.entropy_floor=0 to continue nevertheless"
        )
