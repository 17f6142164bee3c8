"""Readings of the kernel: bytes over an interface, CPU seconds of a job's processes, how busy the machine is."""
import os
from typing import Dict, Tuple

#: Environment variable that every process of a job carries; its value names the job.
MARKER = 'MXHYBRID_BENCH_JOB'

_TICKS_PER_S = os.sysconf('SC_CLK_TCK')


def interface_bytes(interface: str) -> Tuple[int, int]:
    """Bytes received and sent by an interface of this process's network namespace."""
    with open('/proc/self/net/dev') as lines:
        for line in lines:
            name, colon, values = line.partition(':')
            if colon and name.strip() == interface:
                fields = values.split()
                return int(fields[0]), int(fields[8])
    raise LookupError('no network interface %r' % interface)


def processes_of(job: str) -> Dict[int, str]:
    """Processes, zombies excluded, that carry a job's marker: state by process id."""
    wanted = ('%s=%s' % (MARKER, job)).encode()
    found = {}
    for entry in os.listdir('/proc'):
        if not entry.isdigit():
            continue
        try:
            with open('/proc/%s/environ' % entry, 'rb') as environ:
                if wanted not in environ.read().split(b'\0'):
                    continue
            state = _stat(int(entry))[0]
        except OSError:
            continue
        if state not in 'ZX':
            found[int(entry)] = state
    return found


def cpu_seconds(job: str) -> float:
    """CPU seconds, user and system, that the running processes of a job have used so far."""
    total = 0
    for pid in processes_of(job):
        try:
            fields = _stat(pid)
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def busy_seconds() -> float:
    """CPU seconds that all of the machine has used so far, interrupts included."""
    with open('/proc/stat') as stat:
        fields = [int(value) for value in stat.readline().split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / _TICKS_PER_S


def _stat(pid: int) -> list:
    """Fields of /proc/pid/stat from the state on."""
    with open('/proc/%d/stat' % pid) as stat:
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        return stat.read().rpartition(')')[2].split()
