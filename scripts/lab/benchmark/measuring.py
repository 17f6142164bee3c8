"""Readings of the kernel: bytes over an interface, CPU seconds of a job's processes, how busy the machine is."""
import os
from typing import Dict, Tuple

from lab.processes import pids_of, read_stat

_TICKS_PER_S = os.sysconf('SC_CLK_TCK')


def interface_bytes() -> Dict[str, Tuple[int, int]]:
    """Return the bytes received and sent by each interface of this process's network namespace."""
    with open('/proc/self/net/dev', encoding='ascii') as lines:
        counters = [line.replace(':', ' ').split() for line in lines if ':' in line]
    return {name: (int(fields[0]), int(fields[8])) for name, *fields in counters}


def cpu_seconds(job: str) -> float:
    """CPU seconds, user and system, that the running processes of a job have used so far, by the job's marker."""
    stats = [read_stat(pid) for pid in pids_of(job)]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields) / _TICKS_PER_S


def busy_seconds() -> float:
    """CPU seconds that all of the machine has used so far, interrupts included."""
    with open('/proc/stat') as stat:
        fields = [int(value) for value in stat.readline().split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / _TICKS_PER_S
