"""The command line for networks: draws and runs networks, shrinks failing networks, counts outcomes and operators."""
import argparse
import collections
import random
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from .. import cli as programs
from ..runner import Outcome
from . import coverage, runner
from .drawer import Drawer
from .network import Program, tolerance_of
from .script import commands, standing_alone
from .shrinking import Shrinking, shrink

DTYPES = ('float64', 'float32')

#: Networks that are drawn before jobs run them, one for each number of workers.
BATCH = 75


def parse(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog='scripts/fuzz networks', formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description='Draw networks and plans, train each split over the workers of a job and in one process, and '
                    'compare outputs, gradients, weights and running averages. A failing network is made small and '
                    'written as a script.')
    add = parser.add_argument
    add('--count', type=int, default=100, help='number of networks')
    add('--seed', type=int, default=0, help='seed of the first; the others follow')
    add('--ranks', default='2,3,4', help='numbers of workers, used in turn')
    add('--dtype', choices=('both', *DTYPES), default='both',
        help='type of the networks; with both, the seed decides, and two of five networks have float32')
    add('--scripts', type=Path, default=Path('fuzz-failures'), metavar='DIR', help='directory for scripts of failures')
    add('--no-shrink', action='store_true', help='do not make failing networks smaller')
    add('--operators', action='store_true',
        help='list how often each operator was drawn, and operators that never are, with reasons')
    args = parser.parse_args(argv)
    try:
        args.ranks = [int(rank) for rank in args.ranks.split(',')]
        if min(args.ranks) < 2:
            raise ValueError
    except ValueError:
        parser.error('--ranks: %r: give numbers of at least 2, as 2,3,4' % (args.ranks,))
    return args


def workers_of(seed: int, ranks: List[int]) -> int:
    """The number of workers for a seed."""
    return ranks[seed % len(ranks)]


def dtype_for(seed: int, dtype: str) -> str:
    """The type of the network of a seed."""
    return DTYPES[random.Random('dtype %d' % seed).random() < 0.4] if dtype == 'both' else dtype


def sort_of(outcome: Outcome) -> str:
    """Return the sort of a failure, which has to stay the same while its program shrinks."""
    return outcome.kind + (' cut' if 'is cut along' in outcome.words else '')


def shrink_all(failing: Dict[int, Program], outcomes: Dict[int, Outcome], drawer: Drawer, tell: Any
               ) -> Dict[int, Program]:
    """Shrink programs, whose candidates share jobs; return them by seed."""
    shrunk = dict(failing)
    in_progress: Dict[int, Shrinking] = {}
    candidates: Dict[int, List[Program]] = {}

    def advance(seed: int, verdicts: Any) -> None:
        try:
            candidates[seed] = in_progress[seed].send(verdicts)
        except StopIteration as stop:
            shrunk[seed] = stop.value
            del in_progress[seed]
            candidates.pop(seed, None)
    for seed, program in failing.items():
        in_progress[seed] = shrink(program, drawer.examined)
        advance(seed, None)
    while in_progress:
        places = [(seed, program) for seed in in_progress for program in candidates[seed]]
        tell('    shrinking %s: %d candidates' % (', '.join(map(str, in_progress)), len(places)))
        verdicts: Dict[int, List[bool]] = collections.defaultdict(list)
        for (seed, _), outcome in zip(places, runner.run_all([program for _, program in places])):
            verdicts[seed].append(sort_of(outcome) == sort_of(outcomes[seed]))
        for seed in list(in_progress):
            advance(seed, verdicts[seed])
    return shrunk


def write(program: Program, folder: Path) -> str:
    """Write a script that shows a failure; return its name and the commands that run it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ('network-%d.py' % program['seed'])
    path.write_text(standing_alone(program, str(path), tolerance_of(program)))
    return '%s shows it:\n%s' % (path, '\n'.join(commands(program, str(path))))


def main(argv: Optional[List[str]] = None, tell: Any = programs._tell) -> int:
    """Run networks; status 1 if any failed."""
    args = parse(argv)
    outcomes: Dict[int, Outcome] = {}
    drawn: Dict[int, Program] = {}
    began = time.monotonic()
    seeds = list(range(args.seed, args.seed + args.count))
    with Drawer() as drawer:
        try:
            while seeds:
                batch, seeds = seeds[:BATCH], seeds[BATCH:]
                for seed in batch:
                    drawn[seed] = drawer.draw(seed, workers_of(seed, args.ranks), dtype_for(seed, args.dtype))
                outcomes.update(zip(batch, runner.run_all([drawn[seed] for seed in batch])))
                kinds = collections.Counter(outcomes[seed].kind for seed in batch)
                tell('seeds %d to %d: %s' % (batch[0], batch[-1], ', '.join(
                    '%d %s' % (count, kind) for kind, count in kinds.most_common())))
                failing = {seed: drawn[seed] for seed in batch if outcomes[seed].kind not in ('same', 'invalid',
                                                                                              'refused')}
                for seed in failing:
                    tell('seed %d %s: %s' % (seed, outcomes[seed].kind, programs._shortened(outcomes[seed].words)))
                if failing and not args.no_shrink:
                    failing = shrink_all(failing, outcomes, drawer, tell)
                for program in failing.values():
                    tell(write(program, args.scripts))
        except KeyboardInterrupt:
            tell('interrupted')
            return 130
        finally:
            tell(programs.summary(outcomes, time.monotonic() - began))
            if args.operators:
                tell(coverage.table([drawn[seed] for seed in outcomes]))
    return int(any(outcome.kind not in ('same', 'invalid', 'refused') for outcome in outcomes.values()))
