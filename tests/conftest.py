"""What every test gets: import paths, a time limit, cheap tests first, and a last look for processes left behind."""
import logging
import sys

import pytest

TESTS = __file__.rpartition('/')[0]
for path in (TESTS, TESTS.rpartition('/')[0], TESTS.rpartition('/')[0] + '/scripts'):
    if path not in sys.path:
        sys.path.insert(0, path)

import jobs  # noqa: E402  (found by the lines above)

# Directory of tests: seconds that one test may take, in the order in which they run.
TIME_LIMITS = {'unit': 60, 'parallel': 300, 'multihost': 300}


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


def pytest_configure(config):
    if not config.pluginmanager.hasplugin('timeout'):
        raise pytest.UsageError('the tests need pytest-timeout: without it a hanging job would hang for ever')


def pytest_collection_modifyitems(items):
    order = list(TIME_LIMITS)
    items.sort(key=lambda item: order.index(_directory(item)) if _directory(item) in order else -1)
    for item in items:
        if item.get_closest_marker('timeout') is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMITS.get(_directory(item), 60)))


def pytest_sessionfinish(session):
    left = jobs.find_processes(jobs.SESSION)
    if left:
        table = jobs.format_processes(left)
        jobs.kill_processes(jobs.SESSION)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write(f'\nprocesses of test jobs outlived the tests:\n{table}\n')
