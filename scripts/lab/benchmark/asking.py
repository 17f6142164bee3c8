"""Runs programs that need MXNet and reads their answers: MXNet's threads stay out of the benchmark's process."""
import json
import os
import subprocess
import sys
from typing import Any, Callable

from lab.launchers import REPOSITORY, SCRIPTS
from lab.processes import JobFailed


def ask(module: str, question: Any, seconds: float, check: Callable[[], None]) -> Any:
    """Run a module of this package with a question as JSON; return the JSON in its last line of output.

    JobFailed if the module fails, or takes longer than `seconds`.  `check` raises the exception of a signal that came
    meanwhile.
    """
    environment = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join([str(REPOSITORY), str(SCRIPTS)]))
    try:
        finished = subprocess.run([sys.executable, '-m', 'lab.benchmark.' + module, json.dumps(question)],
                                  env=environment, stdout=subprocess.PIPE, timeout=seconds, universal_newlines=True)
    except subprocess.TimeoutExpired as error:
        raise JobFailed('%s did not end within %g s' % (module, seconds)) from error
    check()
    if finished.returncode:
        raise JobFailed('%s ended with status %d' % (module, finished.returncode))
    return json.loads(finished.stdout.strip().splitlines()[-1])
