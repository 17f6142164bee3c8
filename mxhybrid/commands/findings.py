"""What a check found, and ways to check that always come to an end."""
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

#: What a finding can be: as it should be, worth a thought, in the way of a job.
FINE, ADVICE, FAILED = 'fine', 'advice', 'failed'


@dataclass
class Finding:
    """The result of one check.

    Attributes
    ----------
    group : str
        Heading under which it is shown.
    name : str
        Of the check; the same on all workers.
    level : {'fine', 'advice', 'failed'}
    text : str
        What was found.
    remedy : str
        What to do about it, unless it is fine.
    data : dict
        JSON values for who compares hosts or reads the report by program.
    """

    group: str
    name: str
    level: str
    text: str
    remedy: str = ''
    data: Dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> Dict[str, Any]:
        """A JSON value."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> 'Finding':
        """What :meth:`as_json` made."""
        return cls(**value)


class OutOfTime(Exception):
    """A check did not end."""


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Call a function that may block for ever, in a thread that is then left alone.

    Raises
    ------
    OutOfTime
        It takes longer.
    Exception
        What the function raises.
    """
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
    """How a process ended.

    Attributes
    ----------
    status : int or None
        As of ``Popen``; None if it was out of time.
    output, errors : str
        What it wrote.
    """

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
    """Run a process that may crash or hang; it is killed after `seconds`.

    Parameters
    ----------
    argv : list of str
    seconds : float
    env : dict
    given : str
        Its standard input.
    """
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
    parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [os.path.abspath(path) for path in env.get('PYTHONPATH', '').split(os.pathsep) if path]
    env['PYTHONPATH'] = os.pathsep.join([parent] + paths)
    return env


def split_version(text: str) -> Tuple[int, ...]:
    """The leading numbers of a version."""
    numbers = []
    for part in text.split('.'):
        digits = ''
        for letter in part:
            if not letter.isdigit():
                break
            digits += letter
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
