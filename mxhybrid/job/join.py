"""Joins the job that a launcher started, once per process, and agrees with the other workers on every store.

How, :mod:`mxhybrid.job.horovodrun` and :mod:`mxhybrid.job.launch_py` say; without a launcher there is one process, in
which MXNet's local store does the work.

What a member forks or starts is no member of the job, although it has the launcher's variables.
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
#: Settings that a plan gave to the first store, which hold for the others, too.
_planned: Dict[str, Any] = {}
#: Before it joins, a process that was forked looks just like its parent.
_imported_by = os.getpid()


def join(keywords: Dict[str, Any], planned: Optional[Dict[str, Any]] = None) -> Tuple[Job, Settings]:
    """Check what a store was asked for, and join the job, once per process; collective for every store.  A SettingError
    on all workers, where one of them cannot make the store or has other settings.  What is `planned` holds where
    neither keyword nor environment say anything, if nobody has joined before.
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
    """The job of this process, whatever its stores were asked for; if it has none it joins one, as :func:`join` does
    (collective then).
    """
    if _job is None:
        return join({}, planned)[0]
    _job.check()
    return _job


def current() -> Optional[Job]:
    """The job that this process has joined, if it has."""
    return _job


def fail_current(text: str, echo: bool) -> None:
    """Tell the job, if this process is part of one, that this worker's script fails with `text`, and leave."""
    if _job is not None:
        if _job.joined:
            _job.guard.fail(text, echo)
        return
    scheduler = launcher.read().scheduler
    if scheduler is not None and os.getpid() == _imported_by:
        if is_started_by_worker(scheduler):  # which has not joined yet, so this process has its variables
            return
        # Not joined yet: scheduler, servers and the other workers would wait for this one for ever.
        # A native store that the script made by itself would wait for the others at exit, too.
        leave(cleanup=lambda: end_processes_of_job(scheduler, ('scheduler', 'server', 'worker')))


def enter(settings: Settings) -> Job:
    """Join the job of this process's launcher, if there is one."""
    launch = launcher.read()
    name = _launcher_of(launch)
    telemetry = Session()
    guard = Guard(settings, telemetry, launch.scheduler)
    log.configure(settings.log_level, 'rank 0')
    if name == 'none':
        if launch.inherited:
            logger.warning('a worker has started this process, which is no member of its job: it trains by itself')
        else:
            refuse_lone_task()
        telemetry.alone(settings)
        return Job(settings, name, telemetry, guard)
    check_engine()
    given = dict(os.environ)
    try:
        joined = (launch_py if name == 'launch.py' else horovodrun).join(settings, launch, telemetry, guard)
        if joined is None:
            telemetry.alone(settings)
        job = Job(settings, name, telemetry, guard, joined)
    except BaseException as error:
        telemetry.discard()
        guard.tell('%s: %s' % (type(error).__name__, error))
        _restore_environment(given)
        raise
    if job.distributed:
        _restore_environment(given)
        os.environ[launcher.MEMBER] = launcher.membership()
        job.stay_to_the_end()
    return job


def _launcher_of(launch: Launch) -> str:
    """Name of the launcher; Horovod may have been started by hand."""
    module = sys.modules.get('horovod.mxnet')
    if launch.launcher == 'none' and not launch.inherited and module is not None:
        return 'horovodrun' if module.is_initialized() and module.size() > 1 else 'none'
    return launch.launcher


def check_engine() -> None:
    """Refuse MXNet's engine without threads."""
    if os.environ.get('MXNET_ENGINE_TYPE') == 'NaiveEngine':
        raise SettingError("MXNET_ENGINE_TYPE='NaiveEngine' deadlocks with Horovod: unset it, or use "
                           "ThreadedEnginePerDevice")


def _restore_environment(given: Dict[str, str]) -> None:
    """Take back what joining set for native code, which has read it: the script's children are no members."""
    for name in [name for name in os.environ if name.startswith(('DMLC_', 'HOROVOD_')) or name == BOUND_VARIABLE]:
        if name in given:
            os.environ[name] = given[name]
        else:
            del os.environ[name]


def _check_against(job: Job, settings: Settings) -> None:
    """Refuse settings that the job cannot have any more."""
    for name, one in DECLARED.items():
        wanted, given = getattr(settings, name), getattr(job.settings, name)
        matters = bool(wanted) if one.scope == WORKER_0 else job.distributed
        if one.once and matters and wanted != given:
            raise SettingError('%s=%s, but this process already runs with %s: %s' % (
                variable(name), as_written(wanted), as_written(given), one.once))


def agree_on_store(job: Job, settings: Optional[Settings], problem: str) -> None:
    """Agree on a further store, which all workers make (collective).

    `settings` are those of this worker's store, None where there is a `problem` with them, which this worker raises by
    itself.  Raises SettingError where another worker cannot make the store, or has other settings.
    """
    if job.leases is None:
        return
    everyone = job.leases.meet([settings and settings.shared(), problem], 'mxhybrid.another_store')
    for rank, (_, theirs) in enumerate(everyone):
        if theirs and not problem:
            raise SettingError('worker %d cannot make this store: %s' % (rank, theirs))
    if not problem:
        check_equal([theirs for theirs, _ in everyone])
