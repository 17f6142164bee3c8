"""Settings of all tests: import paths, time limits, an order, and a last check for processes left behind.

One process of pytest runs cheap directories first. Several processes that share the tests begin with the files that
took longest when `durations.json` was written, so that all of them end at about the same time; files whose tests run
alone come last. ``--store-durations`` writes that file.

If several processes of pytest share the tests (pytest-xdist, as scripts/test does), no other test runs beside a test
with the marker `alone`: it measures time, or the activity of processes. Tests with the marker `slow` run only with
``--slow``: they are long, and a quick test has a case of the same kind.
"""
import collections
import contextlib
import faulthandler
import fcntl
import json
import logging
import os
import sys
import time

import hypothesis
import pytest

TESTS = __file__.rpartition('/')[0]
ROOT = TESTS.rpartition('/')[0]
for path in (ROOT, ROOT + '/scripts'):
    if path not in sys.path:
        sys.path.insert(0, path)

from lab import processes  # noqa: E402  (found by the lines above)

# Directory of tests: seconds that one test may take, in the order in which they run.
TIME_LIMITS = {'unit': 60, 'parallel': 300, 'multihost': 300, 'clients': 300}

#: Standard error, outside of the capturing of output.
STDERR = pytest.StashKey()

#: The number of tests that are left out, by process of pytest.
LEFT_OUT = {}

#: A JSON file: the seconds that the tests of each file took together.
DURATIONS = TESTS + '/durations.json'

#: Seconds of a file that is not there: it begins before short files, or it might be the only one that runs at the end.
NEW_FILE_S = 60

#: The seconds in this run, with --store-durations.
FILE_SECONDS = {}

# The machine may be busy.
hypothesis.settings.register_profile('untimed', deadline=None,
                                     suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile('untimed')


@pytest.fixture(scope='session', autouse=True)
def _current_lane():
    """Refuse to test with a stale compiled lane: tests would fail without saying so, and jobs would use ps-lite."""
    library = sys.modules.get('mxhybrid.lane.library')
    if library is not None:
        try:
            library.load()
        except OSError as error:
            pytest.fail(str(error))


@pytest.fixture
def caplog(caplog, monkeypatch):
    """Capture mxhybrid's messages, also after a test in which mxhybrid configured its logging."""
    monkeypatch.setattr(logging.getLogger('mxhybrid'), 'propagate', True)
    return caplog


def _directory(item):
    try:
        return item.path.relative_to(TESTS).parts[0]
    except ValueError:
        return ''


def pytest_addoption(parser):
    parser.addoption('--slow', action='store_true', help='also run the tests with the marker slow')
    parser.addoption('--store-durations', action='store_true', help='write the seconds of each file to ' + DURATIONS)


def pytest_configure(config):
    if not config.pluginmanager.hasplugin('timeout'):
        raise pytest.UsageError('the tests need pytest-timeout: without it a hanging job would hang for ever')
    config.stash[STDERR] = open(os.dup(2), 'w')
    # Other processes of pytest inherit it, so that their jobs are found, too.
    os.environ[processes.MARKER] = processes.SESSION
    # MXNet imports distutils, and by default gets that of setuptools, with all of setuptools: a tenth of its import.
    os.environ.setdefault('SETUPTOOLS_USE_DISTUTILS', 'stdlib')


def pytest_collection_modifyitems(config, items):
    order = list(TIME_LIMITS)
    if os.environ.get('PYTEST_XDIST_WORKER'):
        with open(DURATIONS) as file:
            seconds_of = json.load(file)
        alone = collections.Counter()
        for item in items:
            alone[item.location[0]] += 1 if item.get_closest_marker('alone') else -1
        items.sort(key=lambda item: (alone[item.location[0]] > 0, -seconds_of.get(item.location[0], NEW_FILE_S)))
    else:
        items.sort(key=lambda item: order.index(_directory(item)) if _directory(item) in order else -1)
    for item in items:
        marker = item.get_closest_marker('timeout')
        seconds = marker.args[0] if marker else TIME_LIMITS.get(_directory(item), 60)
        item.add_marker(pytest.mark.timeout(seconds * processes.PATIENCE), append=False)
    if not config.getoption('slow'):
        slow = [item for item in items if item.get_closest_marker('slow')]
        items[:] = [item for item in items if not item.get_closest_marker('slow')]
        config.hook.pytest_deselected(items=slow)
        LEFT_OUT['here'] = len(slow)


# ------------------------------------------------------------------------------------------ beside each other

class RecordLock:
    """A lock on a byte of a file, exclusive or shared, between processes of pytest.

    It is a record lock: forked children do not inherit it, and it ends with its process. Closing any handle of the file
    would release it, so the file is open once, and nothing else reads it.
    """

    file = None

    def __init__(self, offset):
        self._offset = offset

    @contextlib.contextmanager
    def held(self, kind):
        """Wait for the lock, `LOCK_EX` or `LOCK_SH`, and hold it while a block runs."""
        RecordLock.file = RecordLock.file or open(TESTS + '/__init__.py', 'r+')
        deadline = time.monotonic() + ROOM_S
        while not self._take(kind):
            if time.monotonic() > deadline:
                raise RuntimeError('other tests left no room for %g s' % ROOM_S)
            time.sleep(0.02)
        try:
            yield
        finally:
            fcntl.lockf(RecordLock.file, fcntl.LOCK_UN, 1, self._offset)

    def _take(self, kind):
        try:
            fcntl.lockf(RecordLock.file, kind | fcntl.LOCK_NB, 1, self._offset)
        except (BlockingIOError, PermissionError):
            return False
        return True


#: A process holds DOOR while it waits for ROOM, so that no other overtakes it.
DOOR, ROOM = RecordLock(0), RecordLock(1)
#: Longer than two tests take that another waits for.
ROOM_S = 1200 * processes.PATIENCE


@contextlib.contextmanager
def room_for(item):
    """Run a test in a block: beside tests of other processes of pytest, or alone."""
    with contextlib.ExitStack() as inside:
        with DOOR.held(fcntl.LOCK_EX):
            inside.enter_context(ROOM.held(fcntl.LOCK_EX if item.get_closest_marker('alone') else fcntl.LOCK_SH))
        yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # before the test's time begins to run
def pytest_runtest_protocol(item):
    with room_for(item):
        # A test that hangs and holds the GIL is not ended by Python's timers; fixtures take time, too.
        limit = item.get_closest_marker('timeout').args[0] + 60
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[STDERR])
        yield
        faulthandler.cancel_dump_traceback_later()


# ----------------------------------------------------------------------------------------------- in the end

@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    LEFT_OUT[node.gateway.id] = getattr(node, 'workeroutput', {}).get('left out', 0)


def pytest_runtest_logreport(report):
    FILE_SECONDS[report.location[0]] = FILE_SECONDS.get(report.location[0], 0) + report.duration


def pytest_sessionfinish(session):
    if hasattr(session.config, 'workeroutput'):
        session.config.workeroutput['left out'] = LEFT_OUT.get('here', 0)
        return
    if session.config.getoption('store_durations'):
        with open(DURATIONS, 'w') as file:
            json.dump({name: round(seconds, 1) for name, seconds in sorted(FILE_SECONDS.items())}, file, indent=0)
            file.write('\n')
    # The markers of jobs begin with pytest's own.
    try:
        processes.assert_no_processes_left(processes.SESSION + '/')
    except processes.JobFailed as left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write(f'\nafter all tests, {left}\n')


def pytest_terminal_summary(terminalreporter):
    if any(LEFT_OUT.values()):
        terminalreporter.write_line('left out: %d slow tests; scripts/test --slow runs them'
                                    % max(LEFT_OUT.values()))
