"""Measure the memory of a Transformer in one process, and split over the heads and words of four workers.

``python -m lab.split_memory`` in ``scripts/`` starts a job of four workers for each plan.  It prints the parts of
weights and of optimizer state that a worker holds, and the highest resident memory while the network is split and while
it trains, beyond that of the process before.  The latter is ``VmHWM`` of /proc/self/status, which includes the shared
memory of the lane.
"""
import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List

WORKERS, STEPS = 4, 2
WORDS, LAYERS, UNITS, HEADS, TIMES, BATCH = 4000, 8, 320, 8, 128, 8
#: The plans of four workers, as JSON, and whether updates are sharded.
CASES = [('megatron(4)', {'plan': 'megatron', 'model': 4}, False),
         ('megatron(4, sequence=True)', {'plan': 'megatron', 'model': 4, 'sequence': True}, False),
         ('megatron(4, sequence=True), sharded updates', {'plan': 'megatron', 'model': 4, 'sequence': True}, True)]


def _status_bytes(name: str) -> int:
    with open('/proc/self/status', encoding='ascii') as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ':'))


class Peak:
    """The growth of resident memory since the object was made."""

    def __init__(self) -> None:
        self._before = _status_bytes('VmRSS')
        self.restart()

    def restart(self) -> None:
        """Forget the highest value so far."""
        with open('/proc/self/clear_refs', 'w', encoding='ascii') as handle:
            handle.write('5')

    @property
    def size_bytes(self) -> int:
        """The highest growth since the last restart."""
        return _status_bytes('VmHWM') - self._before


def work(plan: Dict[str, Any]) -> None:
    """Train as a worker, or alone without a plan, and report."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'examples'))
    import mxnet as mx
    import numpy as np
    from mxnet import autograd, gluon
    from transformer_lm import LanguageModel

    import mxhybrid
    from lab.reports import report
    from mxhybrid.parallel.plans.plan_json import from_json
    store = mxhybrid.create() if plan else None
    mx.nd.waitall()
    peak = Peak()
    mx.random.seed(1)
    model: Any = LanguageModel(WORDS, LAYERS, UNITS, HEADS, TIMES)
    whole = sum(int(np.prod(param.shape)) for param in model.collect_params().values())
    samples = slice(None)
    if plan:
        model = mxhybrid.parallelize(model, from_json(plan), (BATCH, TIMES + 1), init=mx.init.Normal(0.02))
        samples = model.samples
    else:
        model.initialize(mx.init.Normal(0.02))
        model.hybridize(static_alloc=True, static_shape=True)
    mx.nd.waitall()
    peak_while_split = peak.size_bytes
    trainer = gluon.Trainer(model.collect_params(), 'adam', {'learning_rate': 0.001}, kvstore=store)
    words = np.random.RandomState(1).randint(0, WORDS, (BATCH, TIMES + 1))
    losses: List[float] = []
    peak.restart()
    for _ in range(STEPS):
        batch = mx.nd.array(words[samples])
        with autograd.record():
            loss = model(batch)
        loss.backward()
        trainer.step(BATCH)
        losses.append(float(loss.asnumpy().sum()))
    mx.nd.waitall()
    held = sum(int(np.prod(param.shape)) for param in model.collect_params().values())
    state = sum(int(np.prod(array.shape)) for states in trainer._updaters[0].states.values() for array in states)
    report(0 if store is None else store.rank, made=peak_while_split, trains=peak.size_bytes, losses=losses,
           weights=held / whole, state=state / whole / 2)


def _line(name: str, results: Dict[int, Any]) -> str:
    workers = list(results.values())
    losses = [sum(values) / BATCH for values in zip(*(worker['losses'] for worker in workers))]
    return '%-45s weights %.3f, state %.3f, while it is made %.0f MB, while it trains %.0f MB, losses %s' % (
        name, max(worker['weights'] for worker in workers), max(worker['state'] for worker in workers),
        max(worker['made'] for worker in workers) / 1e6, max(worker['trains'] for worker in workers) / 1e6,
        ' '.join('%.5f' % loss for loss in losses))


def main() -> None:
    """Start the jobs, and print a line for each."""
    from lab.jobs import run_job
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--work', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(json.loads(arguments.work))
        return
    alone = run_job(Path(__file__), 'none', workers=1, args=['--work', '{}'], timeout=120).ok()
    sys.stdout.write(_line('one process', alone.results) + '\n')
    for name, plan, shards in CASES:
        job = run_job(Path(__file__), 'horovodrun', workers=WORKERS, args=['--work', json.dumps(plan)], timeout=120,
                      env={'MXHYBRID_SHARD_UPDATES': str(int(shards))}).ok()
        sys.stdout.write(_line(name, job.results) + '\n')
        sys.stdout.flush()


if __name__ == '__main__':
    main()
