"""The workload `start`: the seconds and the CPU seconds until the workers of a job have joined, beside Horovod alone.

A job of Horovod imports MXNet and Horovod, connects the workers and sums an array of one element.  A job of mxhybrid
imports itself, creates a store, initialises an array of one element and sums it.  The jobs take turns.

pip compiles the modules that it installs, but not those of a checkout: they are compiled before the first job, whatever
PYTHONDONTWRITEBYTECODE says.  Otherwise each worker would compile them, which takes three times the CPU of the import.
"""
import argparse
import compileall
import json
import time
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, List

from lab.jobs import run_job

from . import report

NAME = 'start'
#: This project, and Horovod alone.
CONTENDERS = ('hybrid', 'horovod')
_BODY = Path(__file__).resolve().parent / 'start_worker.py'
_PACKAGE = Path(__file__).resolve().parents[3] / 'mxhybrid'


def measure(args: argparse.Namespace, contender: str) -> Dict[str, float]:
    """Run a job; return the seconds until its last worker had joined, and the CPU seconds of all processes so far."""
    started = time.time()
    results = run_job(_BODY, 'horovodrun', args.workers, 1, [contender], dict(args.env), args.timeout).ok().results
    return {'seconds': max(worker['joined'] for worker in results.values()) - started,
            'cpu_s': results[0]['cpu_s']}


def summary(rounds: Dict[str, List[Dict[str, float]]]) -> List[List[str]]:
    """Return the cells of a table with the medians of each contender, and the ratios to Horovod alone."""
    lines = [['', 's', 'CPU s', 'beside Horovod: s', 'CPU']]
    medians = {name: [median(reading[what] for reading in readings) for what in ('seconds', 'cpu_s')]
               for name, readings in rounds.items()}
    for name, values in medians.items():
        ratios = ['%.2f x' % (value / other) for value, other in zip(values, medians['horovod'])]
        lines.append([name] + ['%.1f' % value for value in values] + ratios)
    return lines


def run(args: argparse.Namespace, say: Callable[[str], None]) -> List[Dict[str, Any]]:
    """Measure both, and print the table; returns the readings for the JSON file."""
    print('start of a job of %d workers on this host' % args.workers, flush=True)
    compileall.compile_dir(str(_PACKAGE), quiet=1)
    rounds: Dict[str, List[Dict[str, float]]] = {name: [] for name in CONTENDERS}
    for number in range(args.rounds):
        for name, readings in rounds.items():
            readings.append(measure(args, name))
            say('round %d of %d, %s: %s' % (number + 1, args.rounds, name, json.dumps(readings[-1])))
    print(report.align(summary(rounds)), flush=True)
    return [dict(reading, contender=name) for name, readings in rounds.items() for reading in readings]
