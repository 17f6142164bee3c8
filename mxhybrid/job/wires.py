"""Whether rows of a job travel by the lane: where that is wanted and can be, on all workers."""
from typing import Iterable, List

from ..base.errors import SettingError
from ..base.local_sockets import differ_in_user, user_of_domain
from ..base.log import get_logger
from ..base.settings import Settings, variable
from ..lane import library

logger = get_logger(__name__)


def lane_unavailable_reason(settings: Settings) -> str:
    """Why this worker cannot take the lane; empty if it can, or is not to."""
    if settings.wire == 'ps-lite':
        return ''
    try:
        library.load()
    except OSError as error:
        return str(error)
    return ''


def sums_by_lane(settings: Settings, has_nccl: bool) -> bool:
    """Whether this worker expects that the lane will carry all dense sums: not those of GPUs if Horovod `has_nccl`."""
    if settings.wire == 'ps-lite' or settings.dense == 'horovod' or lane_unavailable_reason(settings):
        return False
    return settings.dense == 'lane' or not has_nccl


def takes_lane(settings: Settings, rank: int, reasons: List[str]) -> bool:
    """Whether a job takes the lane, of which worker `rank` knows the :func:`lane_unavailable_reason` of every worker; a SettingError
    on all where it was asked for and cannot.
    """
    for other, theirs in enumerate(reasons):
        if theirs:
            refuse_lane(settings, rank, 'worker %d cannot: %s' % (other, theirs))
            return False
    return settings.wire != 'ps-lite'


def is_served(settings: Settings, rank: int, domains: Iterable[str], servers: Iterable[str]) -> bool:
    """Whether there is a server in every memory domain in which workers are, so that they can share memory; as
    :func:`takes_lane` if not.
    """
    domains, servers = list(domains), list(servers)
    lacking = [domain for domain in domains if domain not in servers]
    if not lacking:
        return True
    why = 'a host has workers, but no server that they share memory with'
    for server in servers:
        if differ_in_user(lacking[0], server):
            why = ('worker %d runs as user %s, and a server of its host as user %s, and only processes of one user '
                   'share memory. Start all processes of a host as one user'
                   % (domains.index(lacking[0]), user_of_domain(lacking[0]), user_of_domain(server)))
    refuse_lane(settings, rank, why)
    return False


def refuse_lane(settings: Settings, rank: int, why: str) -> None:
    """Say that there is no lane; with a SettingError where it was asked for."""
    for name in ('wire', 'dense'):
        if getattr(settings, name) == 'lane':
            raise SettingError("%s='lane', but %s. Or leave the setting out" % (variable(name), why))
    if rank == 0:
        logger.warning('rows travel by ps-lite, which takes more of the CPU: %s', why)
