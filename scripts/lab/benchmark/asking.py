"""Runs programs that need MXNet and reads their answers: the process of the benchmark must not have MXNet's threads."""
import json
import os
import subprocess
import sys
from typing import Any, Callable

from lab.launchers import REPOSITORY, SCRIPTS
from lab.processes import JobFailed


def ask(module: str, given: Any, seconds: float, check: Callable[[], None]) -> Any:
    """The JSON that a module of this package prints last, of the JSON that it is given.

    Parameters
    ----------
    module : str
        Its name in this package.
    given : JSON
    seconds : float
        That it may take.
    check : callable
        Raise the exception of a signal that came meanwhile.

    Raises
    ------
    JobFailed
        One that fails, or takes too long.
    """
    environment = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join([str(REPOSITORY), str(SCRIPTS)]))
    try:
        done = subprocess.run([sys.executable, '-m', 'lab.benchmark.' + module, json.dumps(given)], env=environment,
                              stdout=subprocess.PIPE, timeout=seconds, universal_newlines=True)
    except subprocess.TimeoutExpired as error:
        raise JobFailed('%s did not end within %g s' % (module, seconds)) from error
    check()
    if done.returncode:
        raise JobFailed('%s ended with status %d' % (module, done.returncode))
    return json.loads(done.stdout.strip().splitlines()[-1])
