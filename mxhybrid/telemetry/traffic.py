"""What one parameter has moved: steps, rows and bytes; and what a host has sent to others."""
from dataclasses import dataclass
from typing import Dict

#: Bytes that a host has sent to others and received from them, ``'sent'`` and ``'received'``, by what they are for.
Network = Dict[str, Dict[str, int]]


def moved_between(before: Network, after: Network) -> Network:
    """What has moved from one count to a later one."""
    return {kind: {way: count - before[kind][way] for way, count in ways.items()} for kind, ways in after.items()}


@dataclass
class Traffic:
    """What one parameter has moved on this worker: pushes, rows in them, bytes sent and received; a row of a table
    costs 12 bytes of ps-lite more, and allreduce moves 2 (N - 1) / N times the size, as a ring does.
    """

    steps: int = 0
    rows: int = 0
    pushed: int = 0
    pulled: int = 0

    def add(self, steps: int = 1, rows: int = 0, pushed: int = 0, pulled: int = 0) -> None:
        """Count one call."""
        self.steps += steps
        self.rows += rows
        self.pushed += pushed
        self.pulled += pulled
