"""The memory, descriptors and threads of the processes of a job, and whether they grow."""
import statistics
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import psutil

MB = 1e6

#: Bytes of memory that ps-lite keeps for each request that a worker made (src/customer.cc, NewRequest).
_REQUEST_BYTES = 8

#: Growth of a median that is allowed: heaps take some MB before their size is stable.
_SLACK = {'memory': 3.0, 'shared': 1.0, 'descriptors': 0, 'threads': 0}


class Sample(NamedTuple):
    """The resources of one process: private and shared memory in MB, open descriptors, threads."""

    memory: float
    shared: float
    descriptors: int
    threads: int


def sample(pid: int) -> Optional[Sample]:
    """Return a sample of a process; None if it has ended."""
    try:
        process = psutil.Process(pid)
        memory = process.memory_full_info()
        mapped = sum(each.size for each in process.memory_maps(grouped=True) if 'memfd:mxhybrid' in each.path)
        return Sample(memory.uss / MB, mapped / MB, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None


def _medians(samples: List[Sample]) -> Dict[str, float]:
    return dict(zip(Sample._fields, map(statistics.median, zip(*samples))))


def slope(samples: List[Sample], interval: float) -> float:
    """Return the slope of the memory after the first quarter of the samples, in MB an hour, by least squares."""
    memory = [each.memory for each in samples[len(samples) // 4:]]
    return float(np.polyfit(np.arange(len(memory)) * interval / 3600, memory, 1)[0])


def judge(samples: Dict[str, List[Sample]], requests: Optional[Dict[str, int]] = None, interval: float = 1.0
          ) -> List[Dict[str, Any]]:
    """Compare the last quarter of the samples of each process with the second quarter.

    There are at least eight samples of each process, one in each `interval` of seconds.  Growth that the `requests` of
    a process to servers explain, which are evenly spread, is allowed.  Return for each process its resources `before`
    and `after`, the MB that its requests explain, the `slope` of its memory in MB an hour, and the fields that `grew`.
    """
    judgements = []
    for name, process_samples in sorted(samples.items()):
        quarter = max(1, len(process_samples) // 4)
        before, after = _medians(process_samples[quarter:2 * quarter]), _medians(process_samples[-quarter:])
        # The medians are half of the run apart: the middles of its second and its last quarter.
        requests_mb = (requests or {}).get(name, 0) * _REQUEST_BYTES / MB / 2
        allowed = dict(_SLACK, memory=max(_SLACK['memory'], 0.01 * before['memory']) + requests_mb)
        grew = [field for field in Sample._fields if after[field] > before[field] + allowed[field]]
        judgements.append({'process': name, 'before': before, 'after': after, 'requests': requests_mb, 'grew': grew,
                           'slope': slope(process_samples, interval), 'samples': len(process_samples)})
    return judgements


def table(judgements: List[Dict[str, Any]]) -> str:
    """Return the judgements as a table."""
    lines = ['%-17s  %-20s  %-8s  %-11s  %-20s  %-12s  %-12s  %s' % (
        'process', 'own memory, MB', 'MB/hour', 'by requests', 'shared memory, MB', 'descriptors', 'threads', 'grew')]
    for judgement in judgements:
        before, after = judgement['before'], judgement['after']
        lines.append('%-17s  %8.1f -> %8.1f  %+8.1f  %11.1f  %8.1f -> %8.1f  %4d -> %4d  %4d -> %4d  %s' % (
            judgement['process'], before['memory'], after['memory'], judgement['slope'], judgement['requests'],
            before['shared'], after['shared'], before['descriptors'], after['descriptors'],
            before['threads'], after['threads'], ', '.join(judgement['grew']) or '-'))
    return '\n'.join(lines)
