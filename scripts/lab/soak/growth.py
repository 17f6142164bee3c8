"""The memory, descriptors and threads of the processes of a job, and whether they grow."""
import statistics
from typing import Any, Dict, List, NamedTuple, Optional

import psutil

MB = 1e6

#: Bytes of memory that ps-lite keeps for each request that a worker made (src/customer.cc, NewRequest).
_REQUEST_BYTES = 8

#: Growth that counts as none, of a median of samples over another: bytes that heaps take to find their size.
_SLACK = {'memory': 3.0, 'shared': 1.0, 'descriptors': 0, 'threads': 0}


class Sample(NamedTuple):
    """The resources of one process: private and shared memory in MB, open descriptors, threads."""

    memory: float
    shared: float
    descriptors: int
    threads: int


def sample(pid: int) -> Optional[Sample]:
    """Look at a process; None if it has gone."""
    try:
        process = psutil.Process(pid)
        own = process.memory_full_info()
        mapped = sum(each.size for each in process.memory_maps(grouped=True) if 'memfd:mxhybrid' in each.path)
        return Sample(own.uss / MB, mapped / MB, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None


def _median(samples: List[Sample], name: str) -> float:
    return statistics.median(getattr(each, name) for each in samples)


def judge(samples: Dict[str, List[Sample]], requests: Optional[Dict[str, int]] = None) -> List[Dict[str, Any]]:
    """Compare the last quarter of each process's samples with the second one.

    Parameters
    ----------
    samples : dict of str to list of Sample
        By process, at equal intervals, at least eight of each.
    requests : dict of str to int, optional
        Requests to servers that the process made, evenly spread: growth that they explain is no finding.

    Returns
    -------
    list of dict
        For each process: what it held `before` and `after`, the MB that its requests take of the difference, and what
        of it `grew`.
    """
    found = []
    for name, held in sorted(samples.items()):
        quarter = max(1, len(held) // 4)
        early, late = held[quarter:2 * quarter], held[-quarter:]
        before = {field: _median(early, field) for field in Sample._fields}
        after = {field: _median(late, field) for field in Sample._fields}
        # From the middle of the second quarter to that of the last one.
        kept = (requests or {}).get(name, 0) * _REQUEST_BYTES / MB / 2
        allowed = dict(_SLACK, memory=max(_SLACK['memory'], 0.01 * before['memory']) + kept)
        grew = [field for field in Sample._fields if after[field] > before[field] + allowed[field]]
        found.append({'process': name, 'before': before, 'after': after, 'requests': kept, 'grew': grew,
                      'samples': len(held)})
    return found


def table(found: List[Dict[str, Any]]) -> str:
    """The judgement as text."""
    lines = ['%-17s  %-20s  %-11s  %-20s  %-12s  %-12s  %s' % (
        'process', 'own memory, MB', 'by requests', 'shared memory, MB', 'descriptors', 'threads', 'grew')]
    for row in found:
        before, after = row['before'], row['after']
        lines.append('%-17s  %8.1f -> %8.1f  %11.1f  %8.1f -> %8.1f  %4d -> %4d  %4d -> %4d  %s' % (
            row['process'], before['memory'], after['memory'], row['requests'], before['shared'], after['shared'],
            before['descriptors'], after['descriptors'], before['threads'], after['threads'],
            ', '.join(row['grew']) or '-'))
    return '\n'.join(lines)
