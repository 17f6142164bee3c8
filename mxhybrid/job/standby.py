"""A worker that stands by: started before it is needed, it waits for the generation before its own to end.

``mxhybrid run --standby`` starts a second set of workers once a generation has made a commit.  A script then runs up to
``import mxhybrid``, which imports all that a worker needs, starts its servers, and waits for the keeper of this host.
"""
import os
from importlib import import_module

from ..base import launcher
from ..base.errors import JobError
from ..base.settings import resolve
from ..comm.horovod_import import load_horovod
from ..messaging.keeper_channel import TooLateError, open_channel
from .horovodrun import expected_roles
from .server_processes import start_early

#: The modules that are imported at their first use otherwise.
_MODULES = ('checkpoint', 'elastic.state', 'nn')


def stand_by() -> None:
    """Return when the generation of this process begins; end the process if it never will."""
    for name in _MODULES:
        import_module('mxhybrid.' + name)
    load_horovod()
    start_early(expected_roles(resolve({}), launcher.read()))
    try:
        connection, _ = open_channel('standby', None)
        connection.close()
    except TooLateError:
        os._exit(0)  # another generation has begun, or the job has ended
    except (JobError, OSError):
        os._exit(1)  # the keeper has died: horovodrun ends the others, too
    del os.environ[launcher.STANDBY]
