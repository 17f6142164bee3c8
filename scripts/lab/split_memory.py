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
from typing import Any, Callable, Dict, List, Optional

WORKERS = 4
#: The sizes of the network and of the joint batch.
SIZES = {'words': 4000, 'layers': 8, 'units': 320, 'heads': 8, 'times': 128, 'batch': 8, 'steps': 2}
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


def train(sizes: Dict[str, int], store: Any, plan: Dict[str, Any], recompute: Optional[str],
          after_start: Callable[[], None], after_step: Callable[[], None]) -> Dict[str, Any]:
    """Train the language model of examples, by a plan if there is a store; return losses and the elements held.

    `after_start` and `after_step` are called when the network has been made, and after each step.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'examples'))
    import mxnet as mx
    import numpy as np
    from mxnet import autograd, gluon
    from transformer_lm import LanguageModel

    import mxhybrid
    from mxhybrid.parallel.plans.plan_json import from_json

    def elements() -> int:
        return sum(int(np.prod(param.shape)) for param in model.collect_params().values())
    mx.random.seed(1)
    model: Any = LanguageModel(*(sizes[name] for name in ('words', 'layers', 'units', 'heads', 'times')))
    whole, shape, init = elements(), (sizes['batch'], sizes['times'] + 1), mx.init.Normal(0.02)
    samples = slice(None)
    if store is None:
        model.initialize(init)
        model.hybridize(static_alloc=True, static_shape=True)
    else:
        model = mxhybrid.parallelize(model, from_json(plan), shape, init=init, recompute=recompute)
        samples = model.samples
    mx.nd.waitall()
    after_start()
    trainer = gluon.Trainer(model.collect_params(), 'adam', {'learning_rate': 0.001}, kvstore=store)
    words = np.random.RandomState(1).randint(0, sizes['words'], shape)
    losses: List[List[float]] = []
    for _ in range(sizes['steps']):
        batch = mx.nd.array(words[samples])
        with autograd.record():
            loss = model(batch)
        loss.backward()
        trainer.step(sizes['batch'])
        losses.append(loss.asnumpy().tolist())
        mx.nd.waitall()
        after_step()
    state = sum(int(np.prod(array.shape)) for states in trainer._updaters[0].states.values() for array in states)
    return {'losses': losses, 'held': elements(), 'whole': whole, 'state': state}


def work(plan: Dict[str, Any]) -> None:
    """Train as a worker, or alone without a plan, and report."""
    import mxnet as mx

    import mxhybrid
    from lab.reports import report
    store = mxhybrid.create() if plan else None
    mx.nd.waitall()
    peak, while_made = Peak(), []

    def note() -> None:
        while_made.append(peak.size_bytes)
        peak.restart()
    trained = train(SIZES, store, plan, None, note, lambda: None)
    report(0 if store is None else store.rank, made=while_made[0], trains=peak.size_bytes,
           losses=[sum(values) for values in trained['losses']], weights=trained['held'] / trained['whole'],
           state=trained['state'] / trained['whole'] / 2)


def _line(name: str, results: Dict[int, Any]) -> str:
    workers = list(results.values())
    losses = [sum(values) / SIZES['batch'] for values in zip(*(worker['losses'] for worker in workers))]
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
