"""Traces of the networks whose operators are timed."""
import pytest

from .networks import Images, Words, graph_of


@pytest.fixture(scope='module')
def images():
    return graph_of(Images(), [(8, 4, 8, 8), (8,)])


@pytest.fixture(scope='module')
def words():
    return graph_of(Words(), (7, 4), 1)
