"""Fixtures of the tests over several hosts. Without root or tools these tests fail; they never skip themselves."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import EmulatedCluster  # noqa: E402


@pytest.fixture(scope='module')
def cluster():
    """Two emulated hosts, hosta and hostb."""
    with EmulatedCluster(hosts=2) as emulated:
        yield emulated
