"""The deadline for native code: it ends the process, names what is missing, and grows while processes arrive."""
import subprocess
import sys

import pytest

pytestmark = pytest.mark.both_pythons

PROGRAM = '''
import time
from mxhybrid.watchdog import deadline
deadline.ECHO_DELAY_S = 0.0
extensions = %r
with deadline.Deadline(0.2, 'the others', missing=lambda: 'worker 1', extension=lambda: extensions.pop(0)):
    time.sleep(%r)
print('done')
'''


def run(extensions, seconds):
    """Run a body of some seconds within a deadline of 0.2 s that grows by `extensions`."""
    return subprocess.run([sys.executable, '-c', PROGRAM % (extensions, seconds)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=60)


def test_a_process_ends_when_its_time_is_over():
    ended = run([0.0], 60)
    assert ended.returncode == 1 and ended.stdout == ''
    assert 'gave up after 0.2 s waiting for the others (worker 1): see' in ended.stderr


def test_extensions_are_added_and_named():
    ended = run([0.3, 0.5, 0.0], 60)
    assert ended.returncode == 1 and 'gave up after 1 s waiting for' in ended.stderr


def test_a_process_that_needs_its_extension_goes_on():
    assert run([30.0], 1).stdout == 'done\n'
