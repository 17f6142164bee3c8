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
    """Return the median CPU time of some calls, in seconds."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def measure(step, times, proposals):
    """Return the number of tasks, and the seconds of building all blocks, of a run, of an empty proposal, of a proposal
    and of its rollback.
    """
    blocks = step.blocks()
    simulation = Simulation(step.resources)
    build_s = seconds_of(step.blocks, 1)
    run_s = seconds_of(lambda: simulation.run(blocks), times)
    empty_s = seconds_of(lambda: simulation.propose({}), times)
    random, proposal_s, rollback_s = np.random.RandomState(1), [], []
    for _ in range(proposals):
        proposal = step.proposal(random.randint(step.operators))
        start = time.process_time()
        simulation.propose(proposal)
        end = time.process_time()
        if random.randint(10):
            simulation.rollback()
        proposal_s.append(end - start)
        rollback_s.append(time.process_time() - end)
    tasks = sum(block.size for block in blocks)
    return tasks, build_s, run_s, empty_s, statistics.mean(proposal_s), statistics.mean(rollback_s)


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sizes', type=int, default=len(SIZES), help='number of sizes to simulate, from the smallest')
    given = parser.parse_args()
    print('%-36s %8s %9s %9s %9s %10s %11s %6s' % ('step', 'tasks', 'blocks ms', 'run ms', 'empty ms', 'propose ms',
                                                   'rollback ms', 'ratio'))
    for name, sizes in list(SIZES.items())[:given.sizes]:
        large = sizes['ranks'] > 100
        tasks, build_s, run_s, empty_s, proposal_s, rollback_s = measure(
            MadeUpStep(**sizes), 3 if large else 15, 20 if large else 200)
        print('%-36s %8d %9.2f %9.2f %9.2f %10.2f %11.2f %6.1f' % (
            name, tasks, 1e3 * build_s, 1e3 * run_s, 1e3 * empty_s, 1e3 * proposal_s, 1e3 * rollback_s,
            run_s / proposal_s))


if __name__ == '__main__':
    main()
