"""Ids and timing of the workload `tables`, for MXNet's processes and for PyTorch's, which has no MXNet."""
import statistics
import time
from typing import Any, Callable, Dict, List

import numpy as np

#: The features of a sample, and the width of a row.
FEATURES, WIDTH = 26, 16
#: Batches, which training repeats: all rows exist after the first time.
BATCHES = 4
#: Batches by Zipf's law; with few of them, rare rows would be used again soon.
FREQUENT_BATCHES = 64
#: Blocks of steps whose times have a median.
BLOCKS = 5


def draw(rank: int, batch: int, samples: int, below: int) -> np.ndarray:
    """Return ids of shape (samples, FEATURES)."""
    return np.random.RandomState([rank, batch]).randint(0, below, (samples, FEATURES))


def draw_frequent(rank: int, batches: int, samples: int, below: int) -> List[np.ndarray]:
    """Return batches of ids of shape (samples, FEATURES) by Zipf's law with exponent 1.1."""
    shares = np.cumsum(np.arange(1, below + 1) ** -1.1)
    return [np.searchsorted(shares, np.random.RandomState([rank, batch]).rand(samples, FEATURES) * shares[-1])
            for batch in range(batches)]


def timed(step: Callable[[], None], flush: Callable[[], None], spec: Dict[str, Any]) -> Dict[str, float]:
    """Return the medians of blocks: seconds and CPU seconds of a step of this process."""
    for _ in range(max(spec['warmup'], BATCHES)):
        step()
    flush()
    seconds, cpu = [], []
    for _ in range(BLOCKS):
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in range(spec['steps']):
            step()
        flush()
        seconds.append((time.perf_counter() - started) / spec['steps'])
        cpu.append((time.process_time() - cpu_started) / spec['steps'])
    return {'step_s': statistics.median(seconds), 'cpu_s': statistics.median(cpu)}
