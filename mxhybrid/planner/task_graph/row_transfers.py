"""The transfers of rows of tables between hosts, to servers and back."""
from typing import List

import numpy as np

from ..cluster.machine_model import Machine
from .task_builder import TaskBuilder


def server_shares(hosts: int, first: int, partitions: int) -> np.ndarray:
    """Return the share of a table's rows on each host: partitions go to hosts in turn, from the host `first` on."""
    return np.bincount((first + np.arange(partitions)) % hosts, None, hosts) / partitions


def between_hosts(machine: Machine, tasks: TaskBuilder, kind: str, before: List[int], sent_bytes: np.ndarray,
                  received_bytes: np.ndarray) -> List[int]:
    """Add transfers on the links of all hosts, after some tasks; return the tasks that end them."""
    if machine.hosts > 1:
        joined = tasks.add(kind, -1, -1, 0.0, after=before)
        before = [joined] + [
            tasks.add(kind, -1, int(link[host]), float(link_bytes[host]), -1, machine.cluster.link_latency_s,
                      after=[joined])
            for link, link_bytes in ((machine.up, sent_bytes), (machine.down, received_bytes))
            for host in range(machine.hosts) if link_bytes[host]]
    return [tasks.add(kind, -1, -1, 0.0, after=before)]
