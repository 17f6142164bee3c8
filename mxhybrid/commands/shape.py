"""What the environment says about the job that this process belongs to; nothing is joined."""
from dataclasses import dataclass
from typing import Mapping, Optional, Tuple


@dataclass(frozen=True)
class Shape:
    """A job as its launcher describes it.

    Attributes
    ----------
    launcher : {'horovodrun', 'launch.py', 'none'}
    rank : int
        Under launch.py the number of the task, or -1 where there is none.
    workers : int
    local : int or None
        Workers on this host, None where only the job itself will know.
    servers : int or None
        The same for servers.
    rendezvous : (str, int) or None
        Where horovodrun keeps values for its workers.
    local_rank : int
        Rank among the workers of this host, 0 where it is not known.
    """

    launcher: str = 'none'
    rank: int = 0
    workers: int = 1
    local: Optional[int] = 1
    servers: Optional[int] = 0
    rendezvous: Optional[Tuple[str, int]] = None
    local_rank: int = 0

    @property
    def several_hosts(self) -> Optional[bool]:
        """Whether the job spans several hosts, None if that is not known."""
        return None if self.local is None else self.local != self.workers


def _number(environ: Mapping[str, str], *names: str) -> Optional[int]:
    for name in names:
        text = environ.get(name, '')
        if text.lstrip('-').isdigit():
            return int(text)
    return None


def of_environment(environ: Mapping[str, str]) -> Shape:
    """Read the variables that launchers set; see :func:`mxhybrid.job.launcher`."""
    if environ.get('DMLC_ROLE') == 'worker' and 'DMLC_PS_ROOT_URI' in environ:
        workers = _number(environ, 'DMLC_NUM_WORKER') or 1
        task = _number(environ, 'DMLC_TASK_ID')
        local = workers if environ.get('DMLC_JOB_CLUSTER') == 'local' else None
        return Shape('launch.py', -1 if task is None else task, workers, local, _number(environ, 'DMLC_NUM_SERVER'),
                     local_rank=0 if local is None or task is None else task)
    rank = _number(environ, 'HOROVOD_RANK', 'OMPI_COMM_WORLD_RANK', 'PMIX_RANK', 'PMI_RANK')
    size = _number(environ, 'HOROVOD_SIZE', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE')
    if rank is None or size is None:
        return Shape()
    port = _number(environ, 'HOROVOD_GLOO_RENDEZVOUS_PORT')
    address = environ.get('HOROVOD_GLOO_RENDEZVOUS_ADDR')
    return Shape('horovodrun', rank, size, _number(environ, 'HOROVOD_LOCAL_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE'),
                 None, (address, port) if address and port else None,
                 _number(environ, 'HOROVOD_LOCAL_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK') or 0)
