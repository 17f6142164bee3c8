"""Fixtures of the tests of checkpoints."""
import pytest

from mxhybrid.checkpoint import files as checkpoint_files

from .dynamic_training import Training


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of a few rows, so that small arrays have several."""
    monkeypatch.setattr(checkpoint_files, 'SHARD_BYTES', 64)


@pytest.fixture
def training():
    return Training()
