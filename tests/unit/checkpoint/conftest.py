"""Fixtures of the tests of checkpoints."""
import logging

import pytest

from mxhybrid.checkpoint import files as checkpoint_files


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of a few rows, so that small arrays have several."""
    monkeypatch.setattr(checkpoint_files, 'SHARD_BYTES', 64)


@pytest.fixture
def messages(caplog):
    """Return the messages that the library logs."""
    logger = logging.getLogger('mxhybrid')
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
