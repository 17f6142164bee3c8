"""Fixtures of the tests over several hosts. Without root or tools these tests fail; they never skip themselves."""
import pytest
from lab.cluster import EmulatedCluster


@pytest.fixture(scope='module')
def cluster():
    """Two emulated hosts, hosta and hostb."""
    with EmulatedCluster(hosts=2) as emulated:
        yield emulated
