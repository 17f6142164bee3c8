"""Elastic jobs: ``mxhybrid run``, keepers and :class:`mxhybrid.elastic.State`."""
import sys
from pathlib import Path

#: The folder of the scripts that workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
BODY = BODIES / 'elastic_training.py'


def run_command(options, arguments):
    """list of str: ``mxhybrid run`` with the body that trains."""
    return [sys.executable, '-m', 'mxhybrid', 'run', *map(str, options), sys.executable, str(BODY),
            *map(str, arguments)]


def read_steps(directory):
    """list of (generation, step, workers): the steps that worker 0 made, in their order."""
    path = Path(str(directory)) / 'steps'
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []
