"""One logger per module below ``mxhybrid``, with the worker's rank in front of every message."""
import logging

_ROOT = 'mxhybrid'


class _RankFilter(logging.Filter):
    """Puts the rank, once known, in front of messages."""

    label = ''
    speaks = True

    def filter(self, record):
        record.mxhybrid = self.label
        return True


_rank_filter = _RankFilter()


def get_logger(name: str) -> logging.Logger:
    """Logger of module `name`; messages carry the rank once :func:`configure` was called."""
    return logging.getLogger(name)


def set_level(level: str) -> None:
    """Set the level of all mxhybrid loggers."""
    logging.getLogger(_ROOT).setLevel(level)


def speaks_for_all() -> bool:
    """Whether this process says what all workers of a job would say alike: worker 0 does, and who has no job."""
    return _rank_filter.speaks


class Sparingly:
    """Warns of the 1st, 2nd, 4th, 8th, ... case only: strangers must not fill the log."""

    def __init__(self, logger: logging.Logger):
        self._logger = logger
        self.count = 0

    def __call__(self, text: str, *args: object) -> None:
        """Log one case, or count it only."""
        self.count += 1
        if self.count & (self.count - 1) == 0:
            self._logger.warning(text + ' (%d so far)', *args, self.count)


def configure(level: str, label: str) -> None:
    """Set the level of all mxhybrid loggers and write to stderr, unless the program gave ``mxhybrid`` handlers.

    Handlers of the root logger do not count, and get no messages then: many a library makes one unasked, which shows
    no rank.  `label` is who speaks, for example ``'rank 0'`` or ``'server 1'``.
    """
    set_level(level)
    root = logging.getLogger(_ROOT)
    _rank_filter.label, _rank_filter.speaks = label, label == 'rank 0'
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('[mxhybrid %(mxhybrid)s] %(message)s'))
        handler.addFilter(_rank_filter)
        root.addHandler(handler)
        root.propagate = False
