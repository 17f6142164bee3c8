"""A run of networks: draws and runs them, shrinks failing networks, counts outcomes and operators."""
import functools
import random
from typing import Any, Dict, List

from .. import session
from ..runner import Outcome
from ..shrinking import drive
from . import runner
from .catalogue import coverage
from .drawer import Drawer
from .network import Program
from .script import commands, standing_alone
from .shrinking import shrink

DTYPES = ('float64', 'float32')

#: Networks that are drawn before jobs run them, one for each number of workers.
BATCH = 75


def workers_of(seed: int, ranks: List[int]) -> int:
    """Return the number of workers for a seed."""
    return ranks[seed % len(ranks)]


def dtype_for(seed: int, dtype: str) -> str:
    """Return the type of the network of a seed."""
    return DTYPES[random.Random('dtype %d' % seed).random() < 0.4] if dtype == 'both' else dtype


def sort_of(outcome: Outcome) -> str:
    """Return the sort of a failure, which has to stay the same while its program shrinks."""
    return outcome.kind + (' cut' if 'is cut along' in outcome.words else '')


def shrink_all(failing: Dict[int, Program], outcomes: Dict[int, Outcome], drawer: Drawer) -> Dict[int, Program]:
    """Shrink programs, whose candidates share jobs; return them by seed."""
    def fails(places: Any) -> List[bool]:
        session.tell('    shrinking %s: %d candidates' % (
            ', '.join(sorted({str(seed) for seed, _ in places})), len(places)))
        return [sort_of(outcome) == sort_of(outcomes[seed])
                for (seed, _), outcome in zip(places, runner.run_all([program for _, program in places]))]
    return drive({seed: shrink(program, drawer.examined) for seed, program in failing.items()}, fails)


class NetworkSession(session.Session):
    """Networks that were run so far, and their outcomes."""

    accepted = ('same', 'invalid', 'refused')

    def __init__(self, ranks: List[int], dtype: str, lists_operators: bool):
        super().__init__()
        self._ranks, self._dtype, self._lists_operators = ranks, dtype, lists_operators
        self._drawn: Dict[int, Program] = {}
        self._drawer = Drawer()

    def batch(self, seeds: List[int]) -> List[int]:
        """Return the first seeds, whose networks are drawn before jobs run them."""
        return seeds[:BATCH]

    def run(self, seeds: List[int]) -> None:
        """Run the networks of seeds; examine the networks that fail."""
        drawn = {seed: self._drawer.draw(seed, workers_of(seed, self._ranks), dtype_for(seed, self._dtype))
                 for seed in seeds}
        self._drawn.update(drawn)
        outcomes = dict(zip(seeds, runner.run_all(list(drawn.values()))))
        self.outcomes.update(outcomes)
        session.tell('seeds %d to %d: %s' % (seeds[0], seeds[-1], session.counted(outcomes.values())))
        failing = {seed: drawn[seed] for seed in self.findings if seed in outcomes}
        for seed in failing:
            session.tell('seed %d %s: %s' % (seed, outcomes[seed].kind, session.shortened(outcomes[seed].words)))
        for seed, program in shrink_all(failing, outcomes, self._drawer).items():
            self._show('network-%d.py' % seed, functools.partial(standing_alone, program),
                       functools.partial(commands, program))

    def close(self) -> None:
        """End the process that draws."""
        self._drawer.close()

    def summary(self, seconds: float) -> str:
        """Summarize the outcomes of all networks, with counts of operators if they are asked for."""
        text = super().summary(seconds)
        return text + '\n' + coverage.table(list(self._drawn.values())) if self._lists_operators else text
