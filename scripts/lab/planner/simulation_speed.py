"""Measures the time of simulations of made-up steps: ``PYTHONPATH=scripts python -m lab.planner.simulation_speed``."""
import argparse
import statistics
import time

import numpy as np

from mxhybrid.planner.simulator.simulation import Simulation

from .steps import MadeUpStep

SIZES = {
    '320 operators, 16 ranks': {'operators': 320, 'ranks': 16},
    'and 80 halo exchanges': {'operators': 320, 'ranks': 16, 'halos': 80},
    'and 80 all-to-alls': {'operators': 320, 'ranks': 16, 'all_to_alls': 80},
    '200 operators, 512 ranks, 48 halos': {'operators': 200, 'ranks': 512, 'halos': 48},
}


def seconds_of(call, times):
    """The median of a few calls, in seconds of this process."""
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return statistics.median(found)


def measure(step, times, proposals):
    """Seconds to make all blocks, to run them, of a change of nothing, of a change and of its undo."""
    blocks = step.blocks()
    simulation = Simulation(step.resources)
    made = seconds_of(step.blocks, 1)
    run = seconds_of(lambda: simulation.run(blocks), times)
    empty = seconds_of(lambda: simulation.propose({}), times)
    random, change, undo = np.random.RandomState(1), [], []
    for _ in range(proposals):
        proposed = step.proposal(random.randint(step.operators))
        start = time.process_time()
        simulation.propose(proposed)
        between = time.process_time()
        if random.randint(10):
            simulation.rollback()
        change.append(between - start)
        undo.append(time.process_time() - between)
    return simulation.tasks, made, run, empty, statistics.mean(change), statistics.mean(undo)


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sizes', type=int, default=len(SIZES), help='number of sizes to simulate, from the smallest')
    given = parser.parse_args()
    print('%-36s %8s %9s %9s %9s %9s %9s %6s' % ('step', 'tasks', 'blocks ms', 'run ms', 'none ms', 'change ms',
                                                 'undo ms', 'ratio'))
    for name, sizes in list(SIZES.items())[:given.sizes]:
        large = sizes['ranks'] > 100
        tasks, *found = measure(MadeUpStep(**sizes), 3 if large else 15, 20 if large else 200)
        print('%-36s %8d' % (name, tasks), *('%9.2f' % (1e3 * one) for one in found), '%6.1f' % (found[1] / found[3]))


if __name__ == '__main__':
    main()
