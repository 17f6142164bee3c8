"""Read the environment variables by which launchers describe a job; nothing is joined.

==================  =======================================================  ==========================
launcher            recognised by                                            includes
==================  =======================================================  ==========================
``horovodrun``      ``HOROVOD_RANK``, or an MPI's or PMI's rank or size      ``mpirun``, ``srun``
``launch.py``       ``DMLC_ROLE=worker`` and ``DMLC_PS_ROOT_URI``            MXNet's, and scripts/launch.py
none                none of them                                             plain ``python``
==================  =======================================================  ==========================

Tasks of an MPI form a job only if Horovod was built with MPI.  Tasks of other launchers, such as torchrun, form no job.
:func:`several_tasks` reads the number of tasks that any launcher has started.

A process that a member of a job forks or starts has the launcher's variables, but is no member: ``MXHYBRID_MEMBER``
marks it.
"""
import os
from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

#: Prefixes of the variables of each launcher, to remove for processes that must not join its job.
OF_HOROVODRUN = ('HOROVOD_', 'OMPI_', 'PMI_', 'PMIX_', 'MV2_')
OF_LAUNCH_PY = ('DMLC_', 'PS_')
#: Variables of launchers whose tasks form no job.
OF_OTHERS = ('SLURM_STEP_NUM_TASKS', 'SLURM_PROCID', 'WORLD_SIZE', 'RANK', 'JSM_NAMESPACE_', 'FLUX_JOB_SIZE',
             'FLUX_TASK_RANK')
#: Variable with the process id of a member of a job and its place there; its descendants inherit it.
MEMBER = 'MXHYBRID_MEMBER'
#: Variable of the workers of an elastic job that stand by, see :mod:`mxhybrid.job.standby`.
STANDBY = 'MXHYBRID_STANDBY'
_RANKS = ('HOROVOD_RANK', 'OMPI_COMM_WORLD_RANK', 'MV2_COMM_WORLD_RANK', 'PMIX_RANK', 'PMI_RANK')
_SIZES = ('HOROVOD_SIZE', 'OMPI_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_SIZE', 'PMI_SIZE')
#: Launchers with their variables for the number of tasks and for the rank.  The first one with both variables counts: a
#: launcher that another one can start comes before that one.  ``SLURM_NTASKS`` is not among them: a batch script, which
#: is one process, has it, too.
_TASKS = (
    ('horovodrun', 'HOROVOD_SIZE', 'HOROVOD_RANK'),
    ('mpirun of Open MPI', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK'),
    ('mpirun of MVAPICH', 'MV2_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_RANK'),
    ('an MPI over PMI (mpirun of MPICH or Intel MPI, or srun --mpi=pmi2)', 'PMI_SIZE', 'PMI_RANK'),
    ('jsrun', 'JSM_NAMESPACE_SIZE', 'JSM_NAMESPACE_RANK'),
    ('torchrun', 'WORLD_SIZE', 'RANK'),
    ('flux run', 'FLUX_JOB_SIZE', 'FLUX_TASK_RANK'),
    ('srun', 'SLURM_STEP_NUM_TASKS', 'SLURM_PROCID'))
#: Variables that together differ between all processes that a launcher starts.
_PLACE_BY_LAUNCH_PY = ('DMLC_PS_ROOT_URI', 'DMLC_PS_ROOT_PORT', 'DMLC_TASK_ID')
_PLACE_BY_HOROVODRUN = ('HOROVOD_GLOO_RENDEZVOUS_ADDR', 'HOROVOD_GLOO_RENDEZVOUS_PORT', 'HOROVOD_RANK',
                        'OMPI_COMM_WORLD_RANK', 'MV2_COMM_WORLD_RANK', 'PMI_RANK', 'PMIX_NAMESPACE', 'PMIX_RANK')


@dataclass(frozen=True)
class Launch:
    """A job, and the place of this process in it, as the launcher describes them."""

    #: 'horovodrun', 'launch.py' or 'none'.
    launcher: str = 'none'
    #: Under launch.py the number of the task; -1 if only the job itself will know it.
    rank: int = 0
    #: The number of workers; this and the following three are None if only the job itself will know them.
    workers: Optional[int] = 1
    #: The number of workers on this host.
    local_workers: Optional[int] = 1
    servers: Optional[int] = 0
    #: The rank among the workers of this host; 0 if it is not known.
    local_rank: int = 0
    #: The address of horovodrun's notice board, see :mod:`mxhybrid.messaging.notice_board`.
    rendezvous: Optional[Tuple[str, int]] = None
    #: The address of the scheduler of launch.py.
    scheduler: Optional[Tuple[str, int]] = None
    #: The network interface for Horovod, if the launcher gives one.
    interface: Optional[str] = None
    #: Whether this process only inherits the variables of a member that forked or started it.
    inherited: bool = False
    #: Whether the launcher puts the rank, which it does not know, in front of the lines of this process.
    asks_rank: bool = False

    @property
    def several_hosts(self) -> Optional[bool]:
        """True if the job spans several hosts; None if that is not known."""
        if self.local_workers is None or self.workers is None:
            return None
        return self.local_workers != self.workers


@dataclass(frozen=True)
class StartedTasks:
    """Several tasks that a launcher has started, of which this process is one."""

    launcher: str
    #: The number of tasks; if only a rank is known, the least possible number.
    count: int
    #: The number of this task, if it is known.
    rank: Optional[int]
    #: The variables that show it, with their values.
    variables: Tuple[Tuple[str, str], ...]
    #: Whether the number of tasks and the rank both show it, and no inner launcher has started a single task.
    certain: bool

    @property
    def said(self) -> str:
        """The variables with their values, as text."""
        return ', '.join('%s=%s' % pair for pair in self.variables)

    @property
    def names(self) -> str:
        return ' and '.join(name for name, _ in self.variables)


def several_tasks(environ: Mapping[str, str] = os.environ) -> Optional[StartedTasks]:
    """Return the tasks if a launcher has started this process as one of several; None if no variable shows it.

    A process that a member of a job has started is not a task of the launcher.
    """
    if read(environ).inherited:
        return None
    hint: Optional[StartedTasks] = None
    one_task = False
    for name, size_variable, rank_variable in _TASKS:
        size, rank = _number(environ, size_variable), _number(environ, rank_variable)
        count = (rank or 0) + 1 if size is None else size
        known = size is not None and rank is not None
        if count > 1:
            variables = tuple((variable, environ[variable]) for variable in (size_variable, rank_variable)
                              if variable in environ)
            tasks = StartedTasks(name, count, rank, variables, known and not one_task)
            if tasks.certain:
                return tasks
            hint = hint or tasks
        one_task = one_task or known
    return hint


def is_worker(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is a worker: launch.py has not started it as a server or scheduler."""
    return environ.get('DMLC_ROLE', 'worker') == 'worker'


def is_local(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ps-lite is set to use Unix sockets, ``/tmp/PORT``, which work within a host only."""
    return bool(_number(environ, 'DMLC_LOCAL'))


def read(environ: Mapping[str, str] = os.environ) -> Launch:
    """Return the job as the launcher of this process describes it."""
    interface = environ.get('HOROVOD_GLOO_IFACE') or None
    if (environ.get('DMLC_ROLE') == 'worker' and 'DMLC_PS_ROOT_URI' in environ
            and not _are_of_member(_PLACE_BY_LAUNCH_PY, environ)):
        return _by_launch_py(environ, interface)
    rank, size = _number(environ, *_RANKS), _number(environ, *_SIZES)
    if rank is None and size is None or _are_of_member(_PLACE_BY_HOROVODRUN, environ):
        inherited = _are_of_member(_PLACE_BY_LAUNCH_PY + _PLACE_BY_HOROVODRUN, environ)
        return Launch(interface=interface, inherited=inherited)
    if size is None and 'PMIX_RANK' in environ:  # PMIx has no size, but Slurm, which starts most of its jobs, has one
        size = _number(environ, 'SLURM_STEP_NUM_TASKS')
    address, port = environ.get('HOROVOD_GLOO_RENDEZVOUS_ADDR'), _number(environ, 'HOROVOD_GLOO_RENDEZVOUS_PORT')
    known = address and port and rank is not None and size is not None
    return Launch('horovodrun', -1 if rank is None else rank, size,
                  _number(environ, 'HOROVOD_LOCAL_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'MV2_COMM_WORLD_LOCAL_SIZE'),
                  None, _number(environ, 'HOROVOD_LOCAL_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK',
                                'MV2_COMM_WORLD_LOCAL_RANK') or 0,
                  (str(address), int(port or 0)) if known else None, None, interface)


def _by_launch_py(environ: Mapping[str, str], interface: Optional[str]) -> Launch:
    workers, task = _number(environ, 'DMLC_NUM_WORKER') or 1, _number(environ, 'DMLC_TASK_ID')
    local = workers if environ.get('DMLC_JOB_CLUSTER') == 'local' else None
    scheduler = environ['DMLC_PS_ROOT_URI'], _number(environ, 'DMLC_PS_ROOT_PORT') or 0
    return Launch('launch.py', -1 if task is None else task, workers, local, _number(environ, 'DMLC_NUM_SERVER'),
                  0 if local is None or task is None else task, None, scheduler, interface,
                  asks_rank=bool(environ.get('DMLC_SAY_RANK')))


def membership() -> str:
    """Return the value of :data:`MEMBER` that a process sets, for its descendants, once it has joined its job."""
    return '%d %s' % (os.getpid(), ','.join(_place(os.environ)))


def _place(environ: Mapping[str, str]) -> List[str]:
    return ['%s=%s' % (name, environ[name]) for name in _PLACE_BY_LAUNCH_PY + _PLACE_BY_HOROVODRUN if name in environ]


def _are_of_member(names: Tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Return whether this process inherits a launcher's variables from a member of a job that forked or started it.

    Ask for each launcher by itself: a member may start a job under the other one.
    """
    pid, _, place = environ.get(MEMBER, '').partition(' ')

    def of_launcher(entries: List[str]) -> List[str]:
        return [entry for entry in entries if entry.partition('=')[0] in names]
    return bool(pid) and pid != str(os.getpid()) and of_launcher(place.split(',')) == of_launcher(_place(environ))


def _number(environ: Mapping[str, str], *names: str) -> Optional[int]:
    for name in names:
        text = environ.get(name, '')
        if text.lstrip('-').isdigit():
            return int(text)
    return None
