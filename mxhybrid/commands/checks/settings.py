"""Checks of environment variables: settings, and those by which a launcher describes its tasks."""
import difflib
import os
from typing import Any, Dict, List, Mapping, Optional

from ...base.errors import SettingError
from ...base.launcher import Launch, several_tasks
from ...base.settings import DECLARED, resolve, variable
from ...job.lone_task import describe_tasks
from .findings import ADVICE, FAILED, FINE, Finding

GROUP = 'Settings'
#: Variables with mxhybrid's prefix that are not settings: they pass values from one process of a job to another.
_INTERNAL = ('MXHYBRID_ROLE', 'MXHYBRID_PARENT', 'MXHYBRID_MONITOR', 'MXHYBRID_RESTART', 'MXHYBRID_MEMBER',
             'MXHYBRID_KEEPER', 'MXHYBRID_STANDBY', 'MXHYBRID_NODE')


def known_variables() -> List[str]:
    """Return the environment variables of all settings."""
    return [variable(name) for name in DECLARED]


def _settings(environ: Mapping[str, str]) -> Finding:
    variables = {name: value for name, value in sorted(environ.items()) if name in known_variables()}
    data: Dict[str, Any] = {'variables': variables}
    try:
        resolve(environ=dict(environ))
    except SettingError as error:
        return Finding(GROUP, 'settings', FAILED, str(error), 'change it as the message says, or unset it', data)
    text = ' '.join('%s=%s' % pair for pair in variables.items()) or 'no variable of mxhybrid is set: defaults'
    return Finding(GROUP, 'settings', FINE, text, data=data)


def _unknown(environ: Mapping[str, str]) -> List[Finding]:
    known = known_variables()
    # Markers and switches of the project's own scripts and examples.
    own = ('MXHYBRID_LAB_', 'MXHYBRID_VENV', 'MXHYBRID_PYTHON', 'MXHYBRID_MXNET', 'MXHYBRID_REQUIRE_',
           'MXHYBRID_SELFTEST', 'MXHYBRID_DATA')
    findings = []
    for name in sorted(environ):
        if name.startswith('MXHYBRID_') and name not in known + list(_INTERNAL) and not name.startswith(own):
            close = difflib.get_close_matches(name, map(variable, DECLARED), 1)
            findings.append(Finding(GROUP, name, ADVICE, '%s is set, but is not a setting' % name,
                                    'did you mean %s?' % close[0] if close else 'unset it'))
    return findings


def _files(environ: Mapping[str, str]) -> List[Finding]:
    findings = []
    for setting in [name for name, declared in DECLARED.items() if declared.is_output]:
        name = variable(setting)
        path = environ.get(name, '')
        directory = os.path.dirname(os.path.abspath(path))
        if path.strip() and setting != 'tensorboard' and not os.access(directory, os.W_OK | os.X_OK):
            findings.append(Finding(GROUP, setting, FAILED, '%s=%s: %s %s' % (
                name, path, directory,
                'cannot be written' if os.path.isdir(directory) else 'does not exist'),
                'give a path in a directory that exists and is writable on the host of worker 0'))
    return findings


def _engine(environ: Mapping[str, str]) -> Finding:
    engine = environ.get('MXNET_ENGINE_TYPE', '')
    if engine == 'NaiveEngine':
        return Finding(GROUP, 'engine', FAILED, 'MXNET_ENGINE_TYPE=NaiveEngine deadlocks with Horovod',
                       'unset MXNET_ENGINE_TYPE, or use ThreadedEnginePerDevice')
    return Finding(GROUP, 'engine', FINE, "MXNet's engine is %s" % (engine or 'the default, ThreadedEnginePerDevice'))


def check(launch: Launch, environ: Mapping[str, str]) -> List[Finding]:
    findings = [_settings(environ), _engine(environ)] + _unknown(environ)
    return findings + (_files(environ) if launch.rank == 0 else [])


def check_tasks(launch: Launch, horovod_has_mpi: Optional[bool]) -> List[Finding]:
    """Look for tasks that each train alone: those of launchers that mxhybrid does not know, and those of MPI if Horovod
    was built without it; `horovod_has_mpi` is None if that is not known.
    """
    tasks = several_tasks()
    if tasks is None or launch.launcher == 'launch.py' or launch.rendezvous is not None and launch.workers != 1:
        return []
    text, remedy = describe_tasks(tasks)
    if launch.launcher != 'none' and launch.workers != 1:
        if horovod_has_mpi is not False or not tasks.certain:
            return []  # joining the job will show it
        text += ', since Horovod was built without MPI'
    return [Finding(GROUP, 'launcher', FAILED if tasks.certain else ADVICE, text, remedy,
                    {'launcher': tasks.launcher, 'tasks': tasks.count, 'variables': dict(tasks.variables)})]
