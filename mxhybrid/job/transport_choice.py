"""Decide whether rows of a job travel by the lane: if the settings allow it and all workers can use it."""
from typing import Any, List, Sequence

from ..base.errors import SettingError
from ..base.log import get_logger
from ..base.settings import Settings, as_written, variable
from ..lane import library
from ..messaging.local_sockets import differ_in_user, user_of_domain

logger = get_logger(__name__)


def lane_unavailable_reason(settings: Settings) -> str:
    """Return why this worker cannot use the lane; empty if it can, or the settings rule the lane out."""
    if settings.row_transport == 'ps-lite':
        return ''
    try:
        library.load()
    except OSError as error:
        return str(error)
    return ''


def reaches_gpus(settings: Settings, hvd: Any) -> bool:
    """Return whether Horovod, ``horovod.mxnet``, can sum arrays on GPUs without copies, and the settings allow it."""
    return settings.dense_transport != 'lane' and bool(hvd.nccl_built())


def sums_by_lane(settings: Settings, has_nccl: bool) -> bool:
    """Return whether the lane will probably carry all dense sums: not those of GPUs if Horovod `has_nccl`."""
    if settings.row_transport == 'ps-lite' or settings.dense_transport == 'horovod' or (
            lane_unavailable_reason(settings)):
        return False
    return settings.dense_transport == 'lane' or not has_nccl


def takes_lane(settings: Settings, rank: int, reasons: List[str]) -> bool:
    """Return whether the job uses the lane, given the :func:`lane_unavailable_reason` of every worker.

    SettingError on all workers if a setting asks for the lane and a worker cannot use it.
    """
    for other_rank, reason in enumerate(reasons):
        if reason:
            refuse_lane(settings, rank, 'worker %d cannot: %s' % (other_rank, reason))
            return False
    return settings.row_transport != 'ps-lite'


def is_served(settings: Settings, rank: int, domains: Sequence[str], servers: Sequence[str]) -> bool:
    """Return whether there is a server in every memory domain that has workers, so that they can share memory.

    SettingError on all workers if not, and a setting asks for the lane.
    """
    unserved = [domain for domain in domains if domain not in servers]
    if not unserved:
        return True
    reason = 'a host has workers, but no server that they share memory with'
    for server in servers:
        if differ_in_user(unserved[0], server):
            reason = ('worker %d runs as user %s, and a server of its host as user %s, and only processes of one user '
                      'share memory. Start all processes of a host as one user'
                      % (domains.index(unserved[0]), user_of_domain(unserved[0]), user_of_domain(server)))
    refuse_lane(settings, rank, reason)
    return False


def refuse_lane(settings: Settings, rank: int, reason: str) -> None:
    """Warn on worker 0 that the job does not use the lane; SettingError if a setting asks for it."""
    for name in ('row_transport', 'dense_transport'):
        if getattr(settings, name) == 'lane':
            raise SettingError("%s='lane', but %s. Or leave the setting out" % (variable(name), reason))
    if settings.may_travel_as('int8'):
        raise SettingError("%s=%s needs the lane, but %s. Or use float16 in place of int8"
                           % (variable('wire_dtype'), as_written(settings.wire_dtype), reason))
    if rank == 0:
        logger.warning('rows travel by ps-lite, which takes more of the CPU: %s', reason)
