"""Runs code that may crash or hang, in its own process or thread and with a deadline."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from ...base.machine import describe_status

#: The beginning of the line of standard output with the answer of a process: packages may print something, too.
ANSWER = 'mxhybrid-answer '


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Call a function that may block for ever, in a thread; after `seconds`, abandon it and raise TimeoutError."""
    outcome: 'Future[Any]' = Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, name='mxhybrid-check', daemon=True).start()
    if not wait([outcome], seconds).done:
        raise TimeoutError('no answer within %g s' % seconds)
    return outcome.result()


def interpreter() -> List[str]:
    """Return the command of this interpreter with its options for the search path of modules."""
    flags = sys.flags
    return [sys.executable] + [option for option, is_set in (
        ('-S', flags.no_site), ('-s', flags.no_user_site and not flags.isolated), ('-E', flags.ignore_environment
                                                                                    and not flags.isolated),
        ('-I', flags.isolated)) if is_set]


@dataclass
class Ended:
    """The exit status of a process, and its output."""

    #: The return code of ``Popen``; None if the process was killed at its deadline.
    status: Optional[int]
    output: str
    errors: str

    def how(self, seconds: float) -> str:
        """Return how the process ended, as text; its deadline was `seconds`."""
        if self.status is None:
            return 'did not end within %g s' % seconds
        if self.status < 0:
            return 'crashed with ' + describe_status(self.status)
        return 'ended with status %d' % self.status

    def answer(self) -> Any:
        """Return the JSON value in the last line that begins with `ANSWER`; None without one, or after a failure."""
        lines = [line for line in self.output.splitlines() if line.startswith(ANSWER)]
        return json.loads(lines[-1][len(ANSWER):]) if lines and self.status == 0 else None

    def last_words(self) -> str:
        """Return the last line that it wrote on standard error."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1][:400] if lines else ''


def call_process(argv: List[str], seconds: float, env: Dict[str, str], text: str = '') -> Ended:
    """Run a process that may crash or hang, with `text` as its standard input; it is killed after `seconds`."""
    # Files, not pipes: a process that inherits the end of a pipe may keep it open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as source:
        source.write(text.encode())
        source.seek(0)
        status: Optional[int] = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = subprocess.run(argv, stdin=source, stdout=output, stderr=errors, env=env, timeout=seconds,
                                    check=False).returncode
        return Ended(status, *(_content(handle) for handle in (output, errors)))


def _content(handle: Any) -> str:
    handle.seek(0)
    return handle.read().decode(errors='replace')


def package_environment() -> Dict[str, str]:
    """Return the environment for another Python process that imports this package, wherever that is installed."""
    env = dict(os.environ)
    parent = str(Path(os.path.abspath(__file__)).parents[3])
    paths = [os.path.abspath(path) for path in env.get('PYTHONPATH', '').split(os.pathsep) if path]
    env['PYTHONPATH'] = os.pathsep.join([parent] + paths)
    return env
