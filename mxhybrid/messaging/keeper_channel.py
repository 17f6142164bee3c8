"""The connection of a worker with the keeper of its host, in an elastic job (:mod:`mxhybrid.elastic`).

The launcher gives its workers two variables: ``MXHYBRID_KEEPER``, from which the name of the keeper's socket follows,
and ``MXHYBRID_RESTART``, the number of the generation.  A keeper refuses workers of another generation than the one
that runs.
"""
import contextlib
import os
from typing import Any, List, Optional, Tuple

from ..base.errors import JobError
from .local_sockets import Connection, connect

#: Variables with the name of the job's keepers, and the number of the generation: 0, 1, ...
KEEPER, GENERATION = 'MXHYBRID_KEEPER', 'MXHYBRID_RESTART'
#: Seconds for a keeper to answer.
_ANSWER_S = 10.0


class TooLateError(JobError):
    """The generation to which this process belongs has ended."""


def is_elastic() -> bool:
    """Return whether an elastic launcher started this process."""
    return bool(os.environ.get(KEEPER))


def generation() -> int:
    """Return the number of starts of the job before this one; 0 without a launcher that counts them."""
    text = os.environ.get(GENERATION, '')
    return int(text) if text.isdigit() else 0


def socket_name(job: str, host: str) -> str:
    """Return the name of a keeper's socket: several hosts of a job may be names of one machine."""
    return 'mxhybrid-keeper-%s-%s' % (job, host)


def _host() -> str:
    """Return the name of this host in the launcher's list."""
    if 'DMLC_ROLE' in os.environ:  # under launch.py, mxhybrid sets Horovod's variable itself
        return 'localhost' if os.environ.get('DMLC_JOB_CLUSTER') == 'local' else os.environ.get('MXHYBRID_NODE', '')
    return os.environ.get('HOROVOD_HOSTNAME', 'localhost')


def open_channel(purpose: str, seconds: Optional[float] = _ANSWER_S) -> Tuple[Connection, str]:
    """Return a connection with the keeper of this host, which answers within some seconds, or at any time, and the
    folder of its commits.

    TooLateError if this process belongs to a generation that has ended; JobError or OSError if there is no keeper.
    """
    connection = connect(socket_name(os.environ[KEEPER], _host()))
    try:
        connection.send(['hello', generation(), purpose])
        answer, _ = connection.receive(seconds)
        if answer[0] == 'refused':
            raise TooLateError(answer[1])
        return connection, answer[1]
    except BaseException:
        connection.close()
        raise


def tell_keeper(message: List[Any]) -> None:
    """Send one message to the keeper of this host, if there is one."""
    if is_elastic():
        with contextlib.suppress(OSError, JobError):
            connection, _ = open_channel('message')
            connection.send(message)
            connection.close()
