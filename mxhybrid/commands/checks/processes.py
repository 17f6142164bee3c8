"""Runs what may crash or hang, in a process or thread of its own and with a deadline."""
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional


class OutOfTime(Exception):
    """A check did not end."""


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Call a function that may block for ever, in a thread that is left alone when it is OutOfTime."""
    outcome: List[Any] = []

    def call() -> None:
        try:
            outcome.extend([True, function()])
        except BaseException as error:
            outcome.extend([False, error])

    thread = threading.Thread(target=call, name='mxhybrid-check', daemon=True)
    thread.start()
    thread.join(seconds)
    if len(outcome) < 2:
        raise OutOfTime('no answer within %g s' % seconds)
    if not outcome[0]:
        raise outcome[1]
    return outcome[1]


def interpreter() -> List[str]:
    """This interpreter with the options that say which modules it finds."""
    flags = sys.flags
    return [sys.executable] + [option for option, given in (
        ('-S', flags.no_site), ('-s', flags.no_user_site and not flags.isolated), ('-E', flags.ignore_environment
                                                                                    and not flags.isolated),
        ('-I', flags.isolated)) if given]


@dataclass
class Ended:
    """How a process ended, and what it wrote."""

    #: As of ``Popen``; None if it was out of time.
    status: Optional[int]
    output: str
    errors: str

    def how(self, seconds: float) -> str:
        """In words, after a deadline of `seconds`."""
        if self.status is None:
            return 'did not end within %g s' % seconds
        if self.status < 0:
            names = {int(known): ' (%s)' % known.name for known in signal.Signals}
            return 'crashed with signal %d%s' % (-self.status, names.get(-self.status, ''))
        return 'ended with status %d' % self.status

    def last_words(self) -> str:
        """The last line that it wrote on stderr."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1][:400] if lines else ''


def call_process(argv: List[str], seconds: float, env: Dict[str, str], given: str = '') -> Ended:
    """Run a process that may crash or hang, with `given` as its standard input; it is killed after `seconds`."""
    # Files, not pipes: whoever inherited the end of a pipe could keep it open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as source:
        source.write(given.encode())
        source.seek(0)
        with subprocess.Popen(argv, stdin=source, stdout=output, stderr=errors, env=env) as process:
            status: Optional[int] = None
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if process.poll() is None:
                    process.kill()
        return Ended(status, *(_content(handle) for handle in (output, errors)))


def _content(handle: Any) -> str:
    handle.seek(0)
    return handle.read().decode(errors='replace')


def package_environment() -> Dict[str, str]:
    """The environment for another Python process that imports this package, wherever it lies."""
    env = dict(os.environ)
    parent = os.path.abspath(__file__)
    for _ in range(4):
        parent = os.path.dirname(parent)
    paths = [os.path.abspath(path) for path in env.get('PYTHONPATH', '').split(os.pathsep) if path]
    env['PYTHONPATH'] = os.pathsep.join([parent] + paths)
    return env
