"""Records of a job that settings request: opened in worker 0, filled by all processes, completed at the end.

The settings of worker 0 count.  ``trace`` writes one Chrome trace with the events of all workers and servers,
``metrics`` a line of JSON for each step of worker 0, and ``tensorboard`` the same numbers for TensorBoard.
"""
import atexit
import os
import socket
import time
from typing import Any, Callable, Dict, Optional, Union

from ..base.errors import SettingError
from ..base.settings import Settings, variable
from ..watchdog.leaving import LAST_WORDS_S
from ..watchdog.lifeline import Lifeline
from ..watchdog.monitor import Monitor
from .recorder import OFF, AnyRecorder, Recorder, in_microseconds, now
from .step_meter import NO_METER, NoMeter, StepMeter
from .step_outputs import JsonLines, StepOutputs, TensorBoard
from .trace_file import TraceFile
from .trace_sender import TraceSender
from .trace_writer import TraceWriter
from .traffic import Network

#: Largest number of characters of a problem that is sent to the other workers.
_PROBLEM_LENGTH = 400
#: Number of events after which a job of one process writes them to the file.
_BATCH = 5000

_OUTPUTS: Dict[str, Callable[[str], Any]] = {'trace': TraceFile, 'metrics': JsonLines, 'tensorboard': TensorBoard}


class Session:
    """The part of this process in the records of the job."""

    def __init__(self) -> None:
        self.trace: AnyRecorder = OFF
        self._file: Optional[TraceFile] = None
        self._outputs: Optional[StepOutputs] = None
        self._trace_sender: Optional[TraceSender] = None
        self._trace_writer: Optional[TraceWriter] = None
        self._origin = now()
        self._stores = 0
        self._pid = os.getpid()
        self._failed = False

    def open(self, settings: Settings, rank: int) -> Dict[str, Any]:
        """Open the outputs in worker 0; return a JSON value for the other workers."""
        if rank:
            return {}
        opened: Dict[str, Any] = {}
        for name, make in _OUTPUTS.items():
            path = getattr(settings, name)
            if not path:
                continue
            try:
                opened[name] = make(path)
            except Exception as error:  # TensorBoard's writers, and what they import, may raise anything
                if 'trace' in opened:
                    opened.pop('trace').discard()
                StepOutputs(opened).close()
                return {'problem': _problem(name, path, error)}
        self._file = opened.pop('trace', None)
        if opened:
            self._outputs = StepOutputs(opened)
            atexit.register(self._close_outputs)
        return {'trace': self._file is not None}

    def agree(self, opened: Dict[str, Any], rank: int) -> None:
        """Use the result of :meth:`open` on worker 0; SettingError if worker 0 cannot write an output."""
        if opened.get('problem'):
            raise SettingError(opened['problem'])
        if opened.get('trace'):
            self.trace = Recorder('worker %d (host %s)' % (rank, socket.gethostname()), rank)

    def alone(self, settings: Settings) -> None:
        """Open the outputs of a job of one process."""
        self.agree(self.open(settings, 0), 0)
        if self._file is not None:
            self._file.name(0, 'worker 0 (host %s)' % socket.gethostname(), 0)
            atexit.register(self._close_alone)

    def collect(self, monitor: Monitor, num_workers: int) -> None:
        """Write the events that `monitor` receives (worker 0)."""
        if self._file is not None:
            self._trace_writer = TraceWriter(monitor, self._file, num_workers)

    def connect(self, lifeline: Lifeline) -> None:
        """Send events over `lifeline`."""
        if isinstance(self.trace, Recorder):
            self._trace_sender = TraceSender(self.trace, lifeline)

    @property
    def measures(self) -> bool:
        """True if stores are measured."""
        return self.trace.enabled or self._outputs is not None

    def new_meter(self, routes: Dict[Any, Any], network: Callable[[], Optional[Network]] = lambda: None
                  ) -> Union[StepMeter, NoMeter]:
        """Return a meter for a store with these routes; `network` returns the bytes that this host has moved."""
        number, self._stores = self._stores, self._stores + 1
        if not self.measures:
            return NO_METER
        return StepMeter(number, self.trace, self._outputs, routes, lambda: self._write_alone(_BATCH), network)

    def fail(self, text: str) -> None:
        """Send the events of this process, once, before it reports that it fails with `text`."""
        if self._failed:
            return
        self._failed = True
        self.trace.instant('failed: ' + text)
        if self._trace_sender is not None:
            self._trace_sender.finish()

    def wait(self) -> None:
        """Wait for the last events of other processes, before this process ends them after a failure."""
        if self._trace_writer is not None:
            self._trace_writer.wait()
        elif self._trace_sender is not None and self._failed:
            time.sleep(LAST_WORDS_S)

    def _write_alone(self, fewest: int) -> None:
        """Write the events of a job of one process to the file, if there are `fewest` of them."""
        trace, file = self.trace, self._file
        if file is not None and self._trace_writer is None and isinstance(trace, Recorder) and len(trace) >= fewest:
            file.add(0, in_microseconds(trace.take(len(trace)), -self._origin))

    def _close_alone(self) -> None:
        if self._file is not None and os.getpid() == self._pid:
            self._write_alone(0)
            self._file.close()

    def _close_outputs(self) -> None:
        if self._outputs is not None and os.getpid() == self._pid:
            self._outputs.close()

    def discard(self) -> None:
        """Remove an open trace: joining the job has failed."""
        if self._file is not None:
            self._file.discard()


def _problem(name: str, path: str, error: Exception) -> str:
    reason, advice = str(error).strip().split('\n')[0], ''
    if isinstance(error, OSError):
        reason = error.strerror or reason
        advice = ': give a path in a directory that exists and is writable there'
    elif not isinstance(error, ImportError):
        reason, advice = '%s: %s' % (type(error).__name__, reason), ': repair its writer, or leave the setting out'
    text = '%s=%.120r cannot be written on worker 0: %s%s' % (variable(name), path, reason, advice)
    return text.encode('ascii', 'backslashreplace').decode()[:_PROBLEM_LENGTH]
