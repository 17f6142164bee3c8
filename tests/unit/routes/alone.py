"""A job of one worker, without processes."""
from types import SimpleNamespace

from mxhybrid.base.settings import Settings
from mxhybrid.routes.route import RouteContext


class Alone:
    """The collective of a single worker: gathers, sums and broadcasts return their input."""

    rank, size = 0, 1

    def allgather(self, values, name, dtype=None):
        """Nobody else has values."""
        return [values]

    allgather_json = allgather

    def allreduce_(self, array, name, priority=0, quantized=False):
        """Nobody adds to it."""

    def broadcast_(self, array, name, priority=0):
        """Nobody needs it."""


def context(collective=None, settings=None, prefix='unit'):
    """Return the context that the routes of a store share, by default that of a single worker."""
    return RouteContext(collective or Alone(), SimpleNamespace(), settings or Settings(), prefix)
