"""A process that draws and examines networks: MXNet ends it where it crashes, and the next one goes on."""
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from lab.fuzz.body import print_traceback
from lab.launchers import PYTHON_PATH
from lab.processes import PATIENCE

from .network import Program, Rejected

#: Seconds that an answer may take.  A busy machine must not reach it: the next attempt gives another program.
_ANSWER_S = 60.0

_ATTEMPTS = 200


class Drawer(contextlib.AbstractContextManager):
    """The process that draws, and the one that takes its place."""

    def __init__(self) -> None:
        self._process: Optional[Any] = None

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with self._process:
                self._process.kill()
            self._process = None

    def draw(self, seed: int, workers: int, dtype: str = 'float64') -> Program:
        """Return the program of a seed."""
        for attempt in range(_ATTEMPTS):
            program = self._ask(['draw', seed, workers, attempt, dtype])
            if program is not None:
                return program
        raise RuntimeError('nothing was drawn for seed %d' % seed)

    def examined(self, program: Program) -> Optional[Program]:
        """Return the program with the shapes of its outputs; None if one process does not train it."""
        return self._ask(['examine', program])

    def _ask(self, request: List[Any]) -> Optional[Dict[str, Any]]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, '-m', 'lab.fuzz.networks.drawer'], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=None if os.environ.get('MXHYBRID_FUZZ_TRACEBACK') else subprocess.DEVNULL, env={
                    **os.environ, 'PYTHONPATH': PYTHON_PATH, 'OMP_NUM_THREADS': '1'})
        self._process.stdin.write(json.dumps(request).encode() + b'\n')
        self._process.stdin.flush()
        deadline, answer = time.monotonic() + _ANSWER_S * PATIENCE, b''
        while not answer.endswith(b'\n'):
            ready = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            more = os.read(self._process.stdout.fileno(), 1 << 20) if ready else b''
            if not more:  # it has crashed, or hangs
                self.close()
                return None
            answer += more
        return json.loads(answer)


def main() -> None:
    """Answer requests."""
    from .drawing import draw, with_shapes
    answers = os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)  # whatever MXNet prints
    for line in sys.stdin.buffer:
        kind, *arguments = json.loads(line)
        program: Optional[Program] = None
        try:
            program = draw(*arguments) if kind == 'draw' else with_shapes(*arguments)
        except Rejected:
            print_traceback()
        answers.write(json.dumps(program).encode() + b'\n')
        answers.flush()


if __name__ == '__main__':
    main()
