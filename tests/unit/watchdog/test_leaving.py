"""The one way out of a process, whatever holds it up, and the deadline for native code."""
import pytest

from mxhybrid.watchdog.leaving import ABORT_STATUS

from .members import LIMIT_S

pytestmark = pytest.mark.both_pythons

#: The first lines of a process that leaves.
IMPORTS = """
import atexit, os, threading, time
from mxhybrid.watchdog import leaving
from mxhybrid.watchdog.leaving import leave
"""


@pytest.fixture
def last_words(run):
    """Run a program that leaves; gives its output and its errors."""
    def run_to_end(program, status=ABORT_STATUS):
        process = run(IMPORTS + program)
        said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == status
        return said

    return run_to_end


@pytest.mark.parametrize('cleanup, extra', [
    ('None', ''), ("lambda: sys.stderr.write('cleaned up\\n')", 'cleaned up\n'), ('lambda: 1 / 0', '')],
    ids=['plain', 'with cleanup', 'with a cleanup that fails'])
def test_leaving_flushes_output_and_skips_exit_handlers(last_words, cleanup, extra):
    said = last_words("atexit.register(print, 'exit handler', flush=True)\nsys.stdout.write('last words')\n"
                      "leave('the reason', cleanup=%s)" % cleanup)
    assert said == ('last words', '[mxhybrid] the reason\n' + extra)


def test_output_without_a_reader_delays_neither_messages_nor_cleanup(run):
    process = run(IMPORTS + "sys.stdin.readline()\nsys.stdout = open(1, 'w')\nsys.stdout.write('text')\n"
                  "leave('the reason', cleanup=lambda: sys.stderr.write('cleaned up\\n'))")
    process.stdout.close()
    process.stdin.write('go\n')
    assert process.stderr.read() == '[mxhybrid] the reason\ncleaned up\n'
    assert process.wait(LIMIT_S) == ABORT_STATUS


def test_output_that_is_never_read_delays_no_process(run):
    process = run(IMPORTS + "leaving.LEAVE_S = 1.0\nos.set_blocking(1, False)\n"
                  "try:\n    while True:\n        os.write(1, b'x' * 4096)\n"
                  "except BlockingIOError:\n    os.set_blocking(1, True)\n"
                  "sys.stdout = open(1, 'w')\nsys.stdout.write('y' * 10)\nleave('the reason')")
    assert process.wait(LIMIT_S) == ABORT_STATUS
    assert process.stderr.read() == '[mxhybrid] the reason\n'


@pytest.mark.parametrize('program, output, errors', [
    ("threading.Thread(target=leave, args=('thread',)).start()\ntime.sleep(60)", '', '[mxhybrid] thread\n'),
    ("threading.Thread(target=leave, args=('the cause',), kwargs={'grace': 0.5}).start()\n"
     "time.sleep(0.1)\nleave('its echo')", '', '[mxhybrid] the cause\n'),
    ("sys.stderr = None\nleave('the reason', cleanup=lambda: os.write(1, b'cleaned up'))", 'cleaned up', ''),
    ("leave('the reason', cleanup=lambda: os.write(2, b'cleaned up'), end_others=lambda: 1 / 0)",
     '', '[mxhybrid] the reason\ncleaned up')],
    ids=['in any thread', 'with the first of two reasons', 'without standard error', 'beside unkillable processes'])
def test_a_process_leaves_with_its_reason(last_words, program, output, errors):
    assert last_words(program) == (output, errors)


@pytest.mark.parametrize('fails', [False, True])
def test_the_job_is_told_before_any_reader(last_words, fails):
    said = last_words("def tell():\n    os.write(2, b'told\\n')\n    if %r:\n        raise OSError('gone')\n"
                      "leave('the reason', tell, lambda: os.write(2, b'cleaned up'))" % fails)
    assert said == ('', 'told\n[mxhybrid] the reason\ncleaned up')


def test_an_orderly_end_has_its_own_status(last_words):
    assert last_words("atexit.register(print, 'exit handler')\nleave(status=0)", status=0) == ('', '')


DEADLINE = """
leaving.ECHO_DELAY_S = 0.0
extensions = %r
with leaving.Deadline(0.2, 'the others', missing=lambda: 'worker 1', extension=lambda: extensions.pop(0)):
    time.sleep(%r)
print('done')
"""


@pytest.mark.parametrize('extensions, waited', [([0.0], '0.2'), ([0.3, 0.5, 0.0], '1')], ids=['none', 'two'])
def test_a_process_ends_after_its_deadline_and_extensions(last_words, extensions, waited):
    output, errors = last_words(DEADLINE % (extensions, 60))
    assert output == '' and 'gave up after %s s waiting for the others (worker 1): see' % waited in errors


def test_a_process_that_needs_its_extension_goes_on(last_words):
    assert last_words(DEADLINE % ([30.0], 1), status=0)[0] == 'done\n'
