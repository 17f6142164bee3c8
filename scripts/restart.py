#!/usr/bin/env python
"""Start a job again when it fails, so that it goes on from its newest checkpoint.

::

    scripts/restart.py -n 3 -- horovodrun -np 2 python train.py
    scripts/launch.py --restarts 3 -n 2 -s 1 --launcher local python train.py    # the same for launch.py

The command runs until it ends with status 0, or has failed N + 1 times; then its status is this script's: 128 + n for
signal n. ``MXHYBRID_RESTART`` in its environment counts the starts before this one: 0, 1, ... The script has to look
for a checkpoint itself (``mxhybrid.checkpoint.load``).

A job that a user ends is not started again: this script passes SIGINT, SIGTERM and SIGHUP on to the command and waits
for its end. A command that ended by one of these signals is not started again either. SIGKILL of this script ends the
command by SIGTERM.
"""
import argparse
import ctypes
import logging
import os
import signal
import subprocess
import sys
from typing import Any, List, Optional

#: Signals by which a user ends a job.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ATTEMPT = 'MXHYBRID_RESTART'

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

log = logging.getLogger('restart.py')


class Runner:
    """Runs commands one after the other, and passes signals on to the running command."""

    def __init__(self) -> None:
        self.stopped: Optional[int] = None
        self._process: Any = None
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a job in a script's background
                signal.signal(number, self._stop)

    def _stop(self, number: int, frame: Any) -> None:
        self.stopped = number
        if self._process is not None:
            self._process.send_signal(number)

    def run(self, command: List[str], attempt: int) -> int:
        """Run a command to its end; returns its status, as a shell reports it."""
        library, parent = ctypes.CDLL(None), os.getpid()

        def die_with_parent() -> None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before
                os._exit(1)

        # A session of its own: Ctrl-C reaches the command once, by way of this script.
        self._process = subprocess.Popen(command, env=dict(os.environ, **{ATTEMPT: str(attempt)}),
                                         start_new_session=True, preexec_fn=die_with_parent)
        if self.stopped is not None:  # it came while the command was being started
            self._process.send_signal(self.stopped)
        status = self._process.wait()
        return status if status >= 0 else 128 - status


def run(command: List[str], restarts: int) -> int:
    """Run a command, again if it fails, `restarts` times at most; returns its last status."""
    runner = Runner()
    for attempt in range(restarts + 1):
        status = runner.run(command, attempt)
        if status == 0:
            return 0
        if runner.stopped is not None or status - 128 in STOP_SIGNALS:
            log.error('ended by %s: not started again', signal.Signals(runner.stopped or status - 128).name)
            return status
        if attempt < restarts:
            log.warning('the job failed with status %d: start %d of %d follows', status, attempt + 2, restarts + 1)
    if restarts:
        log.error('the job failed with status %d, as %d times before: giving up', status, restarts)
    return status


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage='%(prog)s -n N -- command ...')
    parser.add_argument('-n', '--restarts', type=int, required=True, metavar='N', help='start it N times again at most')
    parser.add_argument('command', nargs=argparse.REMAINDER, help='the command, after --')
    options = parser.parse_args()
    if options.command[:1] == ['--']:
        del options.command[0]
    if options.restarts < 0:
        parser.error('-n/--restarts is %d, and cannot be negative' % options.restarts)
    if not options.command:
        parser.error('no command: put it after --')
    return options


def main() -> int:
    """Run the command of the command line."""
    logging.basicConfig(format='%(name)s: %(message)s', level=logging.INFO)
    options = parse_arguments()
    try:
        return run(options.command, options.restarts)
    except OSError as error:
        log.error('%s', error)
        return 127 if isinstance(error, FileNotFoundError) else 126  # as shells have it


if __name__ == '__main__':
    sys.exit(main())
