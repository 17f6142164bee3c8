"""The results of MXNet alone as a fixture, and a note on two files that are left out above CPython 3.8.

gluonnlp 0.10 and MXNet's launch.py do not run there.  A file that the command line names is collected, and fails.
"""
import importlib.util

import pytest
from lab.launchers import STOCK_LAUNCH_WORKS

from ..helpers import comparing

collect_ignore = []
if importlib.util.find_spec('gluonnlp') is None:
    collect_ignore.append('training/test_bigrnn.py')
if not STOCK_LAUNCH_WORKS:
    collect_ignore.append('launchers/test_stock_launch.py')


def pytest_report_collectionfinish():
    # Not in the header: that is written before pytest reads this file, unless this directory is named to it.
    return ['left out: tests/parallel/%s, for CPython 3.8 (.ci/run has it)' % name for name in collect_ignore]


@pytest.fixture(scope='module')
def expected(request, tmp_path_factory):
    """The results of MXNet alone, in one process, with the body of a module of tests."""
    return comparing.reference(request.module.BODY, '--directory', tmp_path_factory.mktemp('alone'))
