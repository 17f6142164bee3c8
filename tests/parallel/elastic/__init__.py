"""Elastic jobs: ``mxhybrid run``, keepers and :class:`mxhybrid.elastic.State`."""
import sys
from pathlib import Path

import numpy as np
from lab.jobs import start_command

#: The folder of the scripts that workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
BODY = BODIES / 'elastic_training.py'
#: Steps between two commits of jobs of these tests.
EVERY = 5
KEEPER = 'mxhybrid.elastic.keeper'


def run_command(options, arguments):
    """list of str: ``mxhybrid run`` with the body that trains."""
    return [sys.executable, '-m', 'mxhybrid', 'run', *map(str, options), sys.executable, str(BODY),
            *map(str, arguments)]


def read_steps(directory):
    """list of (generation, step, workers): the steps that worker 0 made, in their order."""
    path = Path(str(directory)) / 'steps'
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def first_steps(directory):
    """Return the first step that each generation made."""
    return {generation: step for generation, step, _ in reversed(read_steps(directory))}


def start(directory, options=(), arguments=(), env=None):
    """Start a job of two workers that trains, and writes into a directory."""
    return start_command(run_command(['-np', 2, *options], [directory, '--every', EVERY, *arguments]), body=BODY,
                         env=env)


def wait_for_step(job, directory, generation, step):
    """Wait until a generation has made a step."""
    job.wait_until(lambda: any(made[:2] == (generation, step) for made in read_steps(directory)), 100,
                   'step %d of generation %d' % (step, generation))


def discovery_script(directory, text):
    """Return the path of a new program that prints hosts."""
    path = directory / 'discover'
    path.write_text('#!/bin/sh\n' + text)
    path.chmod(0o755)
    return path


def worker_pid(job, rank):
    """The process id of a worker."""
    return next(process.pid for process in job.processes('worker') if process.rank == rank)


def keeper_pid(job):
    """The process id of the keeper."""
    return next(process.pid for process in job.processes() if KEEPER in process.cmdline)


def finish(job, undisturbed):
    """Wait for the end of a job whose workers have the weights of another job, to the last bit; return its result."""
    result = job.wait(timeout=200).ok()
    assert set(result.results) == set(undisturbed.results)
    for rank, values in result.results.items():
        for name in ('users', 'words', 'score'):
            np.testing.assert_array_equal(values[name], undisturbed.results[rank][name], name)
    return result
