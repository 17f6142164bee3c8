"""The traffic of a parameter, in steps, rows and bytes, and the traffic of a host."""
from dataclasses import dataclass
from typing import Dict

#: Bytes that a host has sent to other hosts and received from them, ``'sent'`` and ``'received'``, by their purpose.
Network = Dict[str, Dict[str, int]]


def moved_between(before: Network, after: Network) -> Network:
    """Return the bytes between an earlier and a later count."""
    return {kind: {direction: count - before[kind][direction] for direction, count in counts.items()}
            for kind, counts in after.items()}


@dataclass
class Traffic:
    """The traffic of a parameter on this worker: pushes, rows in them, bytes sent and received.

    A row of a table costs 12 bytes of ps-lite besides its values, and allreduce moves 2 (N - 1) / N times the size, as
    a ring does.
    """

    steps: int = 0
    rows: int = 0
    pushed: int = 0
    pulled: int = 0
    #: Bytes that were not moved because values were rounded before they travelled.
    saved: int = 0

    def add(self, steps: int = 1, rows: int = 0, pushed: int = 0, pulled: int = 0, saved: int = 0) -> None:
        self.steps += steps
        self.rows += rows
        self.pushed += pushed
        self.pulled += pulled
        self.saved += saved
