"""PyTorch's step of the workload `tables` in one process: the job of `table_training.alone` by ``nn.EmbeddingBag``.

An interpreter without MXNet may run it; it imports nothing of this project but `lab.reports`.
"""
import json
import statistics
import sys
import time
from typing import Any, Dict

import numpy as np
import torch

from lab.reports import report

FEATURES, WIDTH, BATCHES, BLOCKS = 26, 16, 4, 5


def main(spec: Dict[str, Any]) -> None:
    """Train, and report the medians of blocks: seconds and CPU seconds of a step."""
    torch.manual_seed(1)
    table = torch.nn.EmbeddingBag(spec['rows'], WIDTH, mode='sum', sparse=True)
    optimizer = {'adagrad': torch.optim.Adagrad, 'adam': torch.optim.SparseAdam}[spec['optimizer']](
        list(table.parameters()), lr=0.05)
    batches = [torch.from_numpy(np.random.RandomState([0, batch]).randint(0, spec['rows'], (spec['ids'], FEATURES)))
               for batch in range(BATCHES)]
    ones = torch.ones(spec['ids'], WIDTH)

    def step(number: int) -> None:
        optimizer.zero_grad()
        table(batches[number % BATCHES]).backward(ones)
        optimizer.step()

    for number in range(max(spec['warmup'], BATCHES)):
        step(number)
    seconds, cpu = [], []
    for _ in range(BLOCKS):
        started, cpu_started = time.perf_counter(), time.process_time()
        for number in range(spec['steps']):
            step(number)
        seconds.append((time.perf_counter() - started) / spec['steps'])
        cpu.append((time.process_time() - cpu_started) / spec['steps'])
    report(0, step_s=statistics.median(seconds), cpu_s=statistics.median(cpu))


if __name__ == '__main__':
    main(json.loads(sys.argv[1]))
