"""PyTorch's process of the workload `tables`: the training of `table_training.alone` by ``nn.EmbeddingBag``.

`tables` starts it, as a script, with an interpreter that may have no MXNet.
"""
import itertools
import json
import sys
from typing import Any, Dict

import torch

from lab.benchmark.table_steps import BATCHES, WIDTH, draw, timed
from lab.reports import report


def main(spec: Dict[str, Any]) -> None:
    """Train, and report a step's seconds and CPU seconds."""
    torch.manual_seed(1)
    table = torch.nn.EmbeddingBag(spec['rows'], WIDTH, mode='sum', sparse=True)
    optimizer = {'adagrad': torch.optim.Adagrad, 'adam': torch.optim.SparseAdam}[spec['optimizer']](
        list(table.parameters()), lr=0.05)
    batches = itertools.cycle([torch.from_numpy(draw(0, batch, spec['ids'], spec['rows']))
                               for batch in range(BATCHES)])
    ones = torch.ones(spec['ids'], WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        table(next(batches)).backward(ones)
        optimizer.step()

    report(0, **timed(step, lambda: None, spec))


if __name__ == '__main__':
    main(json.loads(sys.argv[1]))
