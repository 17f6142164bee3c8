"""The one way out of a process, whatever holds it up, and the deadline for native code."""
import subprocess
import sys

import pytest

from mxhybrid.watchdog.leaving import ABORT_STATUS

from ...helpers.obedient import run_python
from .members import LIMIT_S, PACKAGE

pytestmark = pytest.mark.both_pythons


def last_words(program):
    """Output and errors of a process that leaves."""
    done = run_python(PACKAGE + program)
    said = done.communicate(timeout=LIMIT_S)
    assert done.returncode == ABORT_STATUS
    return said


@pytest.mark.parametrize('cleanup, extra', [
    ('None', ''), ("lambda: sys.stderr.write('cleaned up\\n')", 'cleaned up\n'), ('lambda: 1 / 0', '')],
    ids=['plain', 'with cleanup', 'with a cleanup that fails'])
def test_leaving_flushes_output_and_skips_exit_handlers(cleanup, extra):
    said = last_words("import atexit\natexit.register(print, 'exit handler', flush=True)\n"
                      "sys.stdout.write('last words')\nleave('the reason', cleanup=%s)" % cleanup)
    assert said == ('last words', '[mxhybrid] the reason\n' + extra)


def test_output_without_a_reader_delays_neither_messages_nor_cleanup():
    done = run_python(PACKAGE + "sys.stdin.readline()\nsys.stdout = open(1, 'w')\nsys.stdout.write('text')\n"
                      "leave('the reason', cleanup=lambda: sys.stderr.write('cleaned up\\n'))")
    done.stdout.close()
    done.stdin.write('go\n')
    done.stdin.close()
    assert done.stderr.read() == '[mxhybrid] the reason\ncleaned up\n'
    assert done.wait(LIMIT_S) == ABORT_STATUS


def test_any_thread_can_make_the_process_leave():
    said = last_words("import threading, time\nthreading.Thread(target=leave, args=('thread',)).start()\n"
                      'time.sleep(60)')
    assert said == ('', '[mxhybrid] thread\n')


def test_only_the_first_reason_to_leave_is_written():
    said = last_words("import threading, time\n"
                      "threading.Thread(target=leave, args=('the cause',), kwargs={'grace': 0.5}).start()\n"
                      "time.sleep(0.1)\nleave('its echo')")
    assert said == ('', '[mxhybrid] the cause\n')


def test_output_that_is_never_read_delays_no_process():
    done = run_python(PACKAGE + "import os\nleaving.LEAVE_S = 1.0\nsys.stdin.readline()\n"
                      "os.set_blocking(1, False)\n"
                      "try:\n    while True:\n        os.write(1, b'x' * 4096)\n"
                      "except BlockingIOError:\n    os.set_blocking(1, True)\n"
                      "sys.stdout = open(1, 'w')\nsys.stdout.write('y' * 10)\nleave('the reason')")
    done.stdin.write('go\n')
    done.stdin.close()
    assert done.wait(LIMIT_S) == ABORT_STATUS
    assert done.stderr.read() == '[mxhybrid] the reason\n'


def test_without_standard_error_the_clean_up_is_done():
    said = last_words("import os\nsys.stderr = None\nleave('the reason', cleanup=lambda: os.write(1, b'cleaned up'))")
    assert said == ('cleaned up', '')


@pytest.mark.parametrize('fails', [False, True])
def test_the_job_is_told_before_any_reader(fails):
    said = last_words("import os\ndef tell():\n    os.write(2, b'told\\n')\n    if %r:\n        raise OSError('gone')\n"
                      "leave('the reason', tell, lambda: os.write(2, b'cleaned up'))" % fails)
    assert said == ('', 'told\n[mxhybrid] the reason\ncleaned up')


def test_unkillable_processes_do_not_prevent_the_cleanup():
    said = last_words("import os\n"
                      "leave('the reason', cleanup=lambda: os.write(2, b'cleaned up'), end_others=lambda: 1 / 0)")
    assert said == ('', '[mxhybrid] the reason\ncleaned up')


def test_an_orderly_end_has_its_own_status():
    done = run_python(PACKAGE + "import atexit\natexit.register(print, 'exit handler')\nleave(status=0)")
    assert done.communicate(timeout=LIMIT_S) == ('', '') and done.returncode == 0


PROGRAM = '''
import time
from mxhybrid.watchdog import leaving
leaving.ECHO_DELAY_S = 0.0
extensions = %r
with leaving.Deadline(0.2, 'the others', missing=lambda: 'worker 1', extension=lambda: extensions.pop(0)):
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
