"""Join the job that a launcher started, once per process, and agree with the other workers on every store.

A store is made in two phases: :func:`resolve_store`, in this process alone, and :func:`join`, which all workers call
together.

:mod:`mxhybrid.job.horovodrun` and :mod:`mxhybrid.job.launch_py` join the jobs of their launchers.  Without a launcher
the job has one process, in which MXNet's local store does the work.

A process that a member forks or starts is no member of the job, although it has the launcher's variables.
"""
import os
import sys
from typing import Any, Dict, NamedTuple, Optional

from ..base import launcher, log
from ..base.errors import SettingError
from ..base.launcher import Launch
from ..base.settings import DECLARED, WORKER_0, Settings, as_written, check_equal, resolve, variable
from ..telemetry.session import Session
from ..watchdog.leaving import leave
from . import horovodrun, launch_py
from .core_binding import bind_to_cores
from .guard import Guard
from .job import BOUND_VARIABLE, Job
from .launch_py_processes import end_processes_of_job, is_started_by_worker
from .lone_task import refuse_lone_task

logger = log.get_logger(__name__)

_job: Optional[Job] = None
#: Process id at import: until it joins, a forked process cannot be told from its parent otherwise.
_imported_by = os.getpid()


class StoreRequest(NamedTuple):
    """The settings of a store that is to be made, or the problem with them."""

    keywords: Dict[str, Any]
    settings: Settings
    problem: Optional[SettingError] = None


def resolve_store(keywords: Dict[str, Any]) -> StoreRequest:
    """Return the settings of a store (first phase, not collective).

    A SettingError of the first store is raised here; :func:`join` raises one of a further store, as
    the other workers have to know of it.
    """
    if _job is None:
        return StoreRequest(keywords, resolve(keywords))
    _job.check()
    try:
        settings = resolve(keywords)
        _check_against(_job, settings)
    except SettingError as error:
        return StoreRequest(keywords, _job.settings, error)
    return StoreRequest(keywords, settings)


def join(request: StoreRequest) -> Job:
    """Join the job, or agree on a further store (second phase, collective).

    Raises SettingError on all workers if one of them cannot make the store or has other settings.
    """
    global _job
    if _job is None:
        _job = enter(request.settings)
    else:
        agree_on_store(_job, request.settings, request.problem)
        if request.keywords.get('log_level') is not None:  # a store that does not ask for a level leaves it as it is
            log.set_level(request.settings.log_level)
    return _job


def member() -> Job:
    """Return the job of this process; a process that has joined none joins one (collective then)."""
    if _job is None:
        return join(resolve_store({}))
    _job.check()
    return _job


def current() -> Optional[Job]:
    """Return the job that this process has joined; None if it has not."""
    return _job


def fails_like_another(text: str) -> bool:
    """Report to the job that this worker's script fails with `text`; return whether another process has before."""
    return _job is not None and _job.joined and _job.guard.fails_like_another(text)


def fail_current(text: str, echo: bool, is_written: bool) -> None:
    """Report to the job that this worker's script fails with `text`, and end this process; otherwise do nothing.

    The text `is_written` to standard error, or will be.
    """
    if _job is not None:
        if _job.joined:
            _job.guard.fail(text, echo, is_written)
        return
    scheduler = launcher.read().scheduler
    if scheduler is not None and os.getpid() == _imported_by:
        if is_started_by_worker(scheduler):  # this process only inherits the variables of a worker that has not joined
            return
        # This worker has not joined yet: scheduler, servers and other workers would wait for it for ever.
        # A native store that the script made by itself would wait for the other workers at exit, too.
        leave(cleanup=lambda: end_processes_of_job(scheduler, ('scheduler', 'server', 'worker')))


def enter(settings: Settings) -> Job:
    """Join the job of this process's launcher; without a launcher make a job of one process."""
    launch = launcher.read()
    name = _launcher_of(launch)
    telemetry = Session()
    guard = Guard(settings, telemetry, launch.scheduler)
    log.configure(settings.log_level, 'rank 0')
    if name == 'none':
        if launch.inherited:
            logger.warning('a worker has started this process, which is no member of its job: this process trains by '
                           'itself')
        else:
            refuse_lone_task()
        telemetry.alone(settings)
        return Job(settings, name, telemetry, guard)
    check_engine()
    former = dict(os.environ)
    try:
        joined = (launch_py if name == 'launch.py' else horovodrun).join(settings, launch, telemetry, guard)
        if joined is None:
            telemetry.alone(settings)
        job = Job(settings, name, telemetry, guard, joined)
        if settings.bind_to_cores is not False and job.collective is not None:
            bind_to_cores(job.topology, job.collective, only_if_filled=settings.bind_to_cores is None)
    except BaseException as error:
        telemetry.discard()
        guard.end_servers()
        guard.tell('%s: %s' % (type(error).__name__, error))
        _restore_environment(former)
        raise
    if job.distributed:
        _restore_environment(former)
        os.environ[launcher.MEMBER] = launcher.membership()
        job.stay_to_the_end()
    return job


def _launcher_of(launch: Launch) -> str:
    """Return the name of the launcher; the script may have started Horovod without variables of a launcher."""
    module = sys.modules.get('horovod.mxnet')
    if launch.launcher == 'none' and not launch.inherited and module is not None:
        return 'horovodrun' if module.is_initialized() and module.size() > 1 else 'none'
    return launch.launcher


def check_engine() -> None:
    """Refuse MXNet's engine without threads: SettingError."""
    if os.environ.get('MXNET_ENGINE_TYPE') == 'NaiveEngine':
        raise SettingError("MXNET_ENGINE_TYPE='NaiveEngine' deadlocks with Horovod: unset it, or use "
                           "ThreadedEnginePerDevice")


def _restore_environment(former: Dict[str, str]) -> None:
    """Restore the variables that joining set for native code, so that children of the script do not inherit them."""
    for name in [name for name in os.environ if name.startswith(('DMLC_', 'HOROVOD_')) or name == BOUND_VARIABLE]:
        if name in former:
            os.environ[name] = former[name]
        else:
            del os.environ[name]


def _check_against(job: Job, settings: Settings) -> None:
    """Refuse settings that the job can no longer have."""
    for name, declaration in DECLARED.items():
        requested, current_value = getattr(settings, name), getattr(job.settings, name)
        matters = bool(requested) if declaration.scope == WORKER_0 else job.distributed
        if declaration.once and matters and requested != current_value:
            raise SettingError('%s=%s, but this process already runs with %s: %s' % (
                variable(name), as_written(requested), as_written(current_value), declaration.once))


def agree_on_store(job: Job, settings: Settings, problem: Optional[SettingError]) -> None:
    """Agree on a further store, which all workers make (collective).

    Raises the `problem` with the settings of this worker, if there is one, and SettingError if another worker cannot
    make the store or has other settings.
    """
    if job.leases is not None:
        shared = None if problem else settings.shared()
        everyone = job.leases.meet([shared, str(problem or '')], 'mxhybrid.another_store')
        if not problem:
            for rank, (_, text) in enumerate(everyone):
                if text:
                    raise SettingError('worker %d cannot make this store: %s' % (rank, text))
            check_equal([shared_settings for shared_settings, _ in everyone])
    if problem:
        raise problem
