"""Join the job that a launcher started, once per process, and agree with the other workers on every store.

:mod:`mxhybrid.job.horovodrun` and :mod:`mxhybrid.job.launch_py` join jobs of either launcher.  Without a launcher there
is one process, in which MXNet's local store does the work.

A process that a member forks or starts is no member of the job, although it has the launcher's variables.
"""
import os
import sys
from typing import Any, Dict, Optional, Tuple

from ..base import launcher, log
from ..base.errors import SettingError
from ..base.launcher import Launch
from ..base.settings import DECLARED, WORKER_0, Settings, as_written, check_equal, resolve, variable
from ..telemetry.session import Session
from ..watchdog.leaving import leave
from . import horovodrun, launch_py
from .guard import Guard
from .job import BOUND_VARIABLE, Job
from .launch_py_processes import end_processes_of_job, is_started_by_worker
from .lone_task import refuse_lone_task

logger = log.get_logger(__name__)

_job: Optional[Job] = None
#: Settings that a plan gave to the first store; they hold for later stores, too.
_planned: Dict[str, Any] = {}
#: The process that imported this module: before it joins, a forked process cannot be told from its parent otherwise.
_imported_by = os.getpid()


def join(keywords: Dict[str, Any], planned: Optional[Dict[str, Any]] = None) -> Tuple[Job, Settings]:
    """Check the settings of a new store, and join the job if this process has not yet (collective).

    `planned` settings hold where neither a keyword nor the environment gives one, in the store that joins.
    SettingError on all workers if one of them cannot make the store, or has different settings.
    """
    global _job, _planned
    if _job is None:
        settings = resolve(keywords, planned=planned)
        _job = enter(settings)
        _planned = planned or {}
        return _job, settings
    _job.check()
    try:
        settings = resolve(keywords, planned=_planned)
        _check_against(_job, settings)
    except SettingError as error:
        agree_on_store(_job, None, str(error))
        raise
    agree_on_store(_job, settings, '')
    if keywords.get('log_level') is not None:  # a store that does not ask for a level leaves it as it is
        log.set_level(settings.log_level)
    return _job, settings


def member(planned: Optional[Dict[str, Any]] = None) -> Job:
    """Return the job of this process; join it first, as :func:`join` does (collective), if it has not joined yet."""
    if _job is None:
        return join({}, planned)[0]
    _job.check()
    return _job


def current() -> Optional[Job]:
    """Return the job that this process has joined; None if it has not."""
    return _job


def fail_current(text: str, echo: bool) -> None:
    """Report to the job that this worker's script fails with `text`, and end this process; else do nothing."""
    if _job is not None:
        if _job.joined:
            _job.guard.fail(text, echo)
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
    except BaseException as error:
        telemetry.discard()
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
    """Refuse settings of a later store that differ from those of the job and cannot change: SettingError."""
    for name, declaration in DECLARED.items():
        value, job_value = getattr(settings, name), getattr(job.settings, name)
        matters = bool(value) if declaration.scope == WORKER_0 else job.distributed
        if declaration.once and matters and value != job_value:
            raise SettingError('%s=%s, but this process already runs with %s: %s' % (
                variable(name), as_written(value), as_written(job_value), declaration.once))


def agree_on_store(job: Job, settings: Optional[Settings], problem: str) -> None:
    """Agree on a later store, which all workers make (collective).

    `settings` are those of this worker's store; None if there is a `problem` with them, which the caller raises.
    SettingError if another worker cannot make the store, or has different settings.
    """
    if job.leases is None:
        return
    everyone = job.leases.meet([settings and settings.shared(), problem], 'mxhybrid.another_store')
    for rank, (_, their_problem) in enumerate(everyone):
        if their_problem and not problem:
            raise SettingError('worker %d cannot make this store: %s' % (rank, their_problem))
    if not problem:
        check_equal([shared for shared, _ in everyone])
