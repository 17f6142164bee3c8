"""The workload `tables`: the cost of dynamic tables, each figure with a goal.

The parts are jobs of two workers and two servers on this host, and processes without a job.  Two nets whose steps are
compared train in one job, in alternating blocks of steps, so that changes in the machine's speed affect both. The ratio
is the median of the ratios of neighbouring blocks.  Starts, checkpoints and PyTorch take turns job by job, or save by
save.
"""
import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from lab.jobs import run_job, start_command
from lab.processes import JobFailed

from . import launching, report

NAME = 'tables'
WORKERS, SERVERS = 2, 2
#: Rows of the large table and of the small one beside it.
LARGE, SMALL = 2 * 10 ** 9, 10 ** 6
#: Bytes of a row of 16 elements and of its adagrad state.
_ROW_BYTES = 2 * 16 * 4
_HERE = Path(__file__).resolve().parent
_MIB = float(1 << 20)
#: The optimizers that are compared with PyTorch's, and the names there.
_TORCH_OPTIMIZERS = {'adagrad': 'Adagrad', 'adam': 'SparseAdam'}


class Figure(NamedTuple):
    """A figure beside its goal."""

    what: str
    #: The measured values from which the figure comes.
    measured: str
    value: float
    goal: float
    #: The unit of `value` and `goal`: 'x' for ratios.
    unit: str
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        """True if the figure reaches its goal."""
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def cells(self) -> List[str]:
        """The cells of its line in a table."""
        goal = '%s %g %s' % ('>=' if self.at_least else '<=', self.goal, self.unit)
        return [self.what, self.measured, '%.3g %s' % (self.value, self.unit), goal, 'yes' if self.is_reached else 'no']


def _work(args: argparse.Namespace, part: str, launcher: str = 'horovodrun', **spec: Any) -> Dict[int, Dict[str, Any]]:
    """Run a job, and return the reports of its workers by rank; JobFailed if it fails."""
    spec = dict(spec, part=part, ids=args.ids, warmup=args.warmup, steps=args.steps, rounds=args.rounds)
    workers = 1 if launcher == 'none' else WORKERS
    results: Dict[int, Dict[str, Any]] = run_job(
        _HERE / 'table_training.py', launcher, workers, SERVERS, [json.dumps(spec)], dict(args.env),
        args.timeout).ok().results
    return results


def _turns(args: argparse.Namespace, pair: str, touched: int = 0) -> List[List[List[float]]]:
    """Train two nets in turn; return the seconds and CPU seconds of a step of both, for each pair of blocks.

    The first `touched` rows are updated before.
    """
    reading = _work(args, 'turns', pair=pair, touched=touched)[0]
    check_rows(pair, reading['rows'])
    blocks: List[List[List[float]]] = reading['blocks']
    return blocks


def check_rows(pair: str, rows: List[int]) -> None:
    """Raise JobFailed if two nets that were trained with the same distinct rows do not have the same number of them."""
    if rows[0] != rows[1] or not rows[0]:
        raise JobFailed('%s: the nets have %d and %d rows after the same batches' % (pair, rows[0], rows[1]))


def start_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Yield the start, memory and step of the large table beside the small one."""
    readings: Dict[int, List[Dict[int, Dict[str, Any]]]] = {LARGE: [], SMALL: []}
    for _ in range(args.rounds):
        for rows, jobs in readings.items():
            jobs.append(_work(args, 'start', rows=rows, started=time.time()))
    for what in ('start_s', 'start_cpu_s'):
        yield start_figure(what, [[max(worker[what] for worker in job.values()) for job in jobs]
                                  for jobs in readings.values()])
    for kind in ('anonymous', 'shared'):
        yield worker_figure(kind, [[max(worker['worker'][kind] for worker in job.values()) for job in jobs]
                                   for jobs in readings.values()])
    yield from step_figures('2 x 10^9 rows', _turns(args, 'rows'), 1.10, 1.10)


def start_figure(what: str, seconds: List[List[float]]) -> Figure:
    """Return the figure of starts, from the seconds or CPU seconds with large and small tables."""
    large, small = map(median, seconds)
    return Figure({'start_s': 'start to the end of the first step', 'start_cpu_s': 'CPU of the same start'}[what],
                  '%.2f s, %.2f s' % (large, small), large - small, 3.0, 's more')


def worker_figure(kind: str, sizes: List[List[int]]) -> Figure:
    """Return the figure of a worker's memory, from the bytes with large and small tables."""
    large, small = (median(values) / _MIB for values in sizes)
    return Figure('%s memory of a worker, 2 x 10^9 rows' % kind, '%.1f MiB, %.1f MiB' % (large, small),
                  large - small, 60.0, 'MiB more')


def step_figures(what: str, blocks: List[List[List[float]]], goal: float, cpu_goal: float) -> List[Figure]:
    """Return the figures of a step's time and CPU time, from the blocks of `table_training.turns`."""
    figures = []
    for kind, number, highest in (('step', 0, goal), ('CPU of a step', 1, cpu_goal)):
        pairs = [(first[number], second[number]) for first, second in blocks]
        figures.append(Figure(
            '%s: %s' % (kind, what), '%.2f ms, %.2f ms' % tuple(1e3 * median(values) for values in zip(*pairs)),
            median(first / second if second else float('inf') for first, second in pairs), highest, 'x'))
    return figures


def memory_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Yield the memory of servers a touched row."""
    reading = _work(args, 'memory', touched=args.touched)[0]
    yield memory_figure(reading['grown'], reading['rows'])


def memory_figure(grown: Dict[str, int], rows: int) -> Figure:
    """Return the figure of the memory of servers; their shared memory depends on the batches, not on the rows."""
    return Figure('anonymous memory of servers a touched row', '%.0f MiB for %d rows (%.0f MiB shared)' % (
        grown['anonymous'] / _MIB, rows, grown['shared'] / _MIB), grown['anonymous'] / rows,
        1.25 * _ROW_BYTES + 16, 'bytes')


def hash_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Yield HashEmbedding beside Embedding."""
    yield from step_figures('HashEmbedding beside Embedding', _turns(args, 'hash'), 1.3, 1.5)


def collection_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Yield 26 features in one call beside 26 calls."""
    yield from step_figures('26 features in a collection beside 26 Embeddings', _turns(args, 'collection'), 1.0, 0.4)


def files_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Yield rows in files, with a cache of a quarter of them, beside rows in memory."""
    with tempfile.TemporaryDirectory(prefix='mxhybrid-bench-') as directory:
        cache_bytes = max(args.touched * _ROW_BYTES // 4 // SERVERS, 10 ** 6)
        env = dict(args.env, MXHYBRID_STORAGE='*files*=%s,*=memory' % directory,
                   MXHYBRID_STORAGE_MEMORY=str(cache_bytes))
        blocks = _turns(argparse.Namespace(**dict(vars(args), env=env)), 'files', args.touched)
    yield from step_figures('rows in files, a quarter of them in memory', blocks, 2.0, 2.0)


def checkpoint_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Yield checkpoints compared with ``dd``, and deltas compared with whole checkpoints."""
    with tempfile.TemporaryDirectory(prefix='mxhybrid-bench-') as directory:
        yield from save_figures(_work(args, 'checkpoint', touched=args.touched, directory=directory)[0]['rounds'])


def save_figures(rounds: List[Dict[str, Dict[str, float]]]) -> List[Figure]:
    """Return the figures of checkpoints, from the rounds of `table_training.checkpoint`."""
    wholes, deltas = [[saves[kind] for saves in rounds] for kind in ('whole', 'delta')]
    whole_s, dd_s, delta_s = (median(values) for values in (
        [whole['seconds'] for whole in wholes], [whole['dd_s'] for whole in wholes],
        [delta['seconds'] for delta in deltas]))
    return [
        Figure('speed of a checkpoint beside dd conv=fsync', '%.0f MiB in %.2f s (%.2f s of CPU), %.2f s' % (
            wholes[0]['bytes'] / _MIB, whole_s, median(whole['cpu_s'] for whole in wholes), dd_s),
            median(whole['dd_s'] / whole['seconds'] for whole in wholes), 0.6, 'x', at_least=True),
        Figure('memory of worker 0 for a checkpoint', '%d rounds' % len(rounds),
               max(save['worker_bytes'] for save in wholes + deltas) / _MIB, 200.0, 'MiB more'),
        Figure('delta of 1 % of the rows beside a whole checkpoint', '%.1f MiB in %.3f s, %.2f s' % (
            deltas[0]['bytes'] / _MIB, delta_s, whole_s),
            median(delta['seconds'] / whole['seconds'] for delta, whole in zip(deltas, wholes)), 0.03, 'x')]


def torch_missing(args: argparse.Namespace) -> Optional[str]:
    """Return why PyTorch takes no part, or None."""
    if args.torch_python is None:
        if importlib.util.find_spec('torch') is None:
            return 'PyTorch is not installed here: give an interpreter that has it by --torch-python'
        return None
    return launching.torch_missing(args.torch_python, 'torch', 'numpy')


def torch_figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Yield a step of one process beside PyTorch's."""
    for optimizer, name in _TORCH_OPTIMIZERS.items():
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(_work(args, 'alone', 'none', rows=args.torch_rows, optimizer=optimizer)[0])
            spec = {'rows': args.torch_rows, 'optimizer': optimizer, 'ids': args.ids, 'warmup': args.warmup,
                    'steps': args.steps}
            with start_command([args.torch_python or sys.executable, _HERE / 'table_torch.py', json.dumps(spec)]
                               ) as job:
                theirs.append(job.wait(args.timeout).ok().results[0])
        blocks = [[[each['step_s'], each['cpu_s']] for each in both] for both in zip(ours, theirs)]
        yield from step_figures('one process, %s beside PyTorch (%s)' % (optimizer, name), blocks, 1.0, 1.0)


#: Parts by name, in the order in which they run.
PARTS: Dict[str, Callable[[argparse.Namespace], Iterator[Figure]]] = {
    'start': start_figures, 'memory': memory_figures, 'hash': hash_figures, 'collection': collection_figures,
    'files': files_figures, 'checkpoint': checkpoint_figures, 'torch': torch_figures}


def run(args: argparse.Namespace, say: Callable[[str], None]) -> List[Dict[str, Any]]:
    """Measure the parts, and print their figures; returns them for the JSON file."""
    print('dynamic tables, 16 wide, adagrad, %d workers x %d servers, %d x 26 ids of a worker in a step'
          % (WORKERS, SERVERS, args.ids), flush=True)
    figures: List[Figure] = []
    for part in args.parts:
        reason = torch_missing(args) if part == 'torch' else None
        if reason:
            print('* torch left out: ' + reason, flush=True)
            continue
        started = time.monotonic()
        for figure in PARTS[part](args):
            say('%s: %s; %s; %s, goal %s' % tuple([part] + figure.cells[:4]))
            figures.append(figure)
        say('%s took %.0f s' % (part, time.monotonic() - started))
    if figures:
        print(report.align([['', 'measured', 'figure', 'goal', 'reached']] + [figure.cells for figure in figures]),
              flush=True)
    return [dict(figure._asdict(), reached=figure.is_reached) for figure in figures]
