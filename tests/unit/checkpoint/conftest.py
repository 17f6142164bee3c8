"""Fixtures of the tests of checkpoints."""
import logging

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


@pytest.fixture
def messages(caplog, monkeypatch):
    """Return the messages of the library, also if the test creates the first store, which configures the logger."""
    monkeypatch.setattr(logging.getLogger('mxhybrid'), 'handlers', [caplog.handler])
    caplog.set_level('INFO', 'mxhybrid')
    return caplog
