"""mxhybrid: ``kvstore='hybrid'`` for MXNet 1.9.1 and Gluon.

``import mxhybrid``, pass ``kvstore='hybrid'`` to a standard ``gluon.Trainer`` and start the script with
``horovodrun``, MXNet's ``launch.py`` or plain ``python``.  row_sparse parameters then live in partitions on
parameter servers; gradients of dense parameters are summed by allreduce, as in Parallax (Kim et al., EuroSys 2019).
The lane carries rows and sums if it is available (:mod:`mxhybrid.lane`); otherwise ps-lite and Horovod do.
"""
import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from os import environ as _environ

from .base.launcher import STANDBY as _STANDBY, is_worker as _is_worker
from .base.program import is_command as _is_command
from .native.row_wise import row_wise

__version__ = '0.1.0'

# The command `mxhybrid` also examines installations where importing MXNet fails, crashes or hangs, so it does not
# import MXNet.  Neither does a scheduler that this package starts, which only calls MXNet's library.
# Under launch.py the script of a job also runs as server and as scheduler, where importing MXNet serves until the job
# ends.  Such a process needs nothing else of this package (mxhybrid.servers.pickled, which MXNet's server loads,
# imports what it uses) but row_wise, which is imported above for user modules that such a server imports.
_is_tool = _is_command() or _environ.get('MXHYBRID_ROLE') == 'scheduler'
# In a server of launch.py MXNet is being imported when this package is.
if not _is_tool and 'mxnet' not in _sys.modules and _find_spec('mxnet') is None:
    # A host that evaluates or serves: reading a checkpoint needs no MXNet.
    from .base.errors import CheckpointError, HybridError, InputError, JobError, SettingError

    def __getattr__(name):
        """Import mxhybrid.checkpoint at its first use; say what the other names need."""
        if name == 'checkpoint':
            return _import_module('.checkpoint', __name__)
        raise AttributeError('mxhybrid.%s needs MXNet, which is not installed here: without it there is '
                             'mxhybrid.checkpoint with open, open_tables, changes and export' % name)

    _is_tool = True
if not _is_tool:
    import mxnet as _mxnet  # noqa: F401

if not _is_tool and _is_worker():
    from .base.errors import CheckpointError, HybridError, InputError, JobError, SettingError
    from .base.settings import in_words as _in_words
    from .kvstore import hooks as _hooks
    from .kvstore.hybrid import Hybrid
    from .kvstore.joining import join
    from .kvstore.prefetching import prefetch, prefetching

    _hooks.install()

    # Imported at their first use: a script that splits no layers, saves no checkpoint and has
    # no dynamic tables does not need them.
    _LATER = {'checkpoint': '.checkpoint', 'elastic': '.elastic', 'nn': '.nn', 'parallel': '.parallel',
              'planner': '.planner', 'parallelize': '.parallel.parallelize'}

    def __getattr__(name):
        """Import the module of a name of the package at its first use."""
        if name not in _LATER:
            raise AttributeError('module %r has no attribute %r' % (__name__, name))
        module = _import_module(_LATER[name], __name__)
        value = module if name in ('checkpoint', 'elastic', 'nn', 'parallel', 'planner') else getattr(module, name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted(set(globals()) | set(_LATER))

    def create(**settings):
        """Create a hybrid store, as ``mx.kv.create('hybrid')`` does, with settings.

        Parameters
        ----------
        **settings
            Settings by name, see below; a setting that is None counts as not given.

        Returns
        -------
        Hybrid

        Raises
        ------
        SettingError
            A setting cannot work, on any worker, or must be the same on all workers and is not.
        JobError
            The other processes did not arrive in time.
        """
        return Hybrid(**settings)

    create.__doc__ = (create.__doc__ or '') + _in_words()

    __all__ = ['CheckpointError', 'Hybrid', 'HybridError', 'InputError', 'JobError', 'SettingError', 'checkpoint',
               'create', 'elastic', 'join', 'nn', 'parallel', 'parallelize', 'planner', 'prefetch', 'prefetching',
               'row_wise']

    if _STANDBY in _environ:
        _import_module('.job.standby', __name__).stand_by()
