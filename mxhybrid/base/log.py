"""Loggers of modules below ``mxhybrid``, with the rank of the worker in front of every message."""
import logging

_ROOT = 'mxhybrid'


class _RankFilter(logging.Filter):
    """A filter that puts the rank, once it is known, in front of messages."""

    label = ''

    def filter(self, record):
        record.mxhybrid = self.label
        return True


_rank_filter = _RankFilter()


def get_logger(name: str) -> logging.Logger:
    """Return the logger of module `name`; its messages have the rank once :func:`configure` was called."""
    return logging.getLogger(name)


def set_level(level: str) -> None:
    """Set the level of all mxhybrid loggers."""
    logging.getLogger(_ROOT).setLevel(level)


def speaks_for_all() -> bool:
    """Return whether this process logs messages that all workers share: worker 0 and processes without a job do."""
    return _rank_filter.label in ('', 'rank 0')


class Sparingly:
    """A warning that is logged for the 1st, 2nd, 4th, 8th, ... case only, so that strangers cannot fill the log."""

    def __init__(self, logger: logging.Logger):
        self._logger = logger
        self.count = 0

    def __call__(self, text: str, *args: object) -> None:
        """Count a case, and log it if it is due."""
        self.count += 1
        if self.count & (self.count - 1) == 0:
            self._logger.warning(text + ' (%d so far)', *args, self.count)


def configure(level: str, label: str) -> None:
    """Set the level of all mxhybrid loggers, and log to standard error unless the logger ``mxhybrid`` has handlers.

    Handlers of the root logger do not count, and get no messages then: some libraries make one unasked, which shows no
    rank.  `label` names this process, for example ``'rank 0'`` or ``'server 1'``.
    """
    set_level(level)
    root = logging.getLogger(_ROOT)
    _rank_filter.label = label
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('[mxhybrid %(mxhybrid)s] %(message)s'))
        handler.addFilter(_rank_filter)
        root.addHandler(handler)
        root.propagate = False
