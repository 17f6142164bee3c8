"""Traces of the networks whose operators are timed, and a profiler."""
import pytest

from mxhybrid.planner.profiling.operator_profiler import OperatorProfiler

from .networks import graph_of, images_net, words_net


@pytest.fixture(scope='module')
def images():
    return graph_of(images_net(), [(8, 4, 8, 8), (8,)])


@pytest.fixture(scope='module')
def words():
    return graph_of(words_net(), (7, 4), 1)


@pytest.fixture
def profiles(tmp_path):
    return OperatorProfiler(str(tmp_path / 'profiles.json'))
