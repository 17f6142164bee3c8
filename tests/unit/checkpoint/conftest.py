"""Fixtures of the tests of checkpoints."""
import pytest

from mxhybrid.checkpoint import files as checkpoint_files


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of a few rows, so that small arrays have several."""
    monkeypatch.setattr(checkpoint_files, 'SHARD_BYTES', 64)
