"""The jobs that commands start: none of their processes is left."""
import signal
import subprocess
import sys
import time

import pytest

from mxhybrid.commands import launching

pytestmark = pytest.mark.both_pythons


def test_a_process_that_shows_no_variables_is_ended_too():
    # As any does for a moment when it starts.
    with subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={}) as process:
        try:
            assert process.pid not in launching.members('token')
            start = time.monotonic()
            launching.end('token', [process])
            assert process.poll() == -signal.SIGTERM and time.monotonic() - start < 30
        finally:
            process.kill()
