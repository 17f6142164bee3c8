"""What every test gets: import paths, a time limit, an order, and a last look for processes left behind.

One process of pytest runs cheap directories first. Several processes that share the tests begin with the files that
took longest when `durations.json` was written, so that none of them ends long after the others. ``--store-durations``
writes that file.

Where several processes of pytest share the tests (pytest-xdist, which scripts/test asks for), a test with the marker
`alone` runs while none of the others does: it is about time, or about who computes. Tests with the marker `slow` run
with ``--slow`` only: what is rare and takes long, of which others have one case of each kind.
"""
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
TIME_LIMITS = {'unit': 60, 'parallel': 300, 'multihost': 300}

#: Standard error as it is while no test's output is captured.
STDERR = pytest.StashKey()

#: How many tests are left out, by process of pytest.
LEFT_OUT = {}

#: File of tests: seconds that its tests took, all together.
DURATIONS = TESTS + '/durations.json'

#: The same in this run, with --store-durations.
TAKEN_S = {}

# The machine may be busy.
hypothesis.settings.register_profile('untimed', deadline=None)
hypothesis.settings.load_profile('untimed')


@pytest.fixture
def caplog(caplog, monkeypatch):
    """Pytest's own, which finds mxhybrid's messages also after a test that had mxhybrid set up its logging."""
    monkeypatch.setattr(logging.getLogger('mxhybrid'), 'propagate', True)
    return caplog


def _directory(item):
    try:
        return item.path.relative_to(TESTS).parts[0]
    except ValueError:
        return ''


def pytest_addoption(parser):
    parser.addoption('--slow', action='store_true', help='run the tests with the marker slow, too')
    parser.addoption('--store-durations', action='store_true', help='write how long each file took: ' + DURATIONS)


def pytest_configure(config):
    if not config.pluginmanager.hasplugin('timeout'):
        raise pytest.UsageError('the tests need pytest-timeout: without it a hanging job would hang for ever')
    config.stash[STDERR] = open(os.dup(2), 'w')
    # Further processes of pytest inherit it: their jobs are found, too.
    os.environ[processes.MARKER] = processes.SESSION


def pytest_collection_modifyitems(config, items):
    order = list(TIME_LIMITS)
    if os.environ.get('PYTEST_XDIST_WORKER'):
        with open(DURATIONS) as file:
            seconds_of = json.load(file)
        items.sort(key=lambda item: -seconds_of.get(item.location[0], 0))
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

class Place:
    """A byte of a file, in which processes of pytest are one at a time, or several that share it.

    A record lock, which no process has that a test has forked, and which ends with its own. Closing any handle of the
    file would end it, too: that is open once, and nothing reads it.
    """

    file = None

    def __init__(self, at):
        self._at = at

    @contextlib.contextmanager
    def held(self, how):
        """Wait until there is room, `LOCK_EX` or `LOCK_SH`, and keep it while a block runs."""
        Place.file = Place.file or open(TESTS + '/__init__.py', 'r+')
        deadline = time.monotonic() + ROOM_S
        while not self._take(how):
            if time.monotonic() > deadline:
                raise RuntimeError('other tests left no room for %g s' % ROOM_S)
            time.sleep(0.02)
        try:
            yield
        finally:
            fcntl.lockf(Place.file, fcntl.LOCK_UN, 1, self._at)

    def _take(self, how):
        try:
            fcntl.lockf(Place.file, how | fcntl.LOCK_NB, 1, self._at)
        except (BlockingIOError, PermissionError):
            return False
        return True


#: Who waits for the room waits in its door, and nobody overtakes.
DOOR, ROOM = Place(0), Place(1)
#: No test takes that many seconds, nor two that one waits for.
ROOM_S = 1200 * processes.PATIENCE


@contextlib.contextmanager
def room_for(item):
    """A block in which a test runs: beside those of other processes of pytest, or alone."""
    with contextlib.ExitStack() as inside:
        with DOOR.held(fcntl.LOCK_EX):
            inside.enter_context(ROOM.held(fcntl.LOCK_EX if item.get_closest_marker('alone') else fcntl.LOCK_SH))
        yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # before the test's time begins to run
def pytest_runtest_protocol(item):
    with room_for(item):
        # Where a test hangs and keeps the GIL, no timer of Python's ends it; fixtures and other tests' ends take time.
        limit = item.get_closest_marker('timeout').args[0] + 60
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[STDERR])
        yield
        faulthandler.cancel_dump_traceback_later()


# ----------------------------------------------------------------------------------------------- in the end

@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    LEFT_OUT[node.gateway.id] = getattr(node, 'workeroutput', {}).get('left out', 0)


def pytest_runtest_logreport(report):
    TAKEN_S[report.location[0]] = TAKEN_S.get(report.location[0], 0) + report.duration


def pytest_sessionfinish(session):
    if hasattr(session.config, 'workeroutput'):
        session.config.workeroutput['left out'] = LEFT_OUT.get('here', 0)
        return
    if session.config.getoption('store_durations'):
        with open(DURATIONS, 'w') as file:
            json.dump({name: round(seconds, 1) for name, seconds in sorted(TAKEN_S.items())}, file, indent=0)
            file.write('\n')
    # Jobs have longer markers than the processes of pytest have.
    try:
        processes.assert_no_processes_left(processes.SESSION + '/')
    except processes.JobFailed as left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write(f'\nafter all tests, {left}\n')


def pytest_terminal_summary(terminalreporter):
    if any(LEFT_OUT.values()):
        terminalreporter.write_line('left out: %d slow tests, which scripts/test --slow runs, too'
                                    % max(LEFT_OUT.values()))
