"""mxhybrid: ``kvstore='hybrid'`` for MXNet 1.9.1 and Gluon.

``import mxhybrid``, pass ``kvstore='hybrid'`` to a standard ``gluon.Trainer`` and start the script with
``horovodrun``, MXNet's ``launch.py`` or plain ``python``.  row_sparse parameters then live in partitions on
parameter servers, dense parameters are summed by Horovod allreduce, as in Parallax (Kim et al., EuroSys 2019).
"""
from .base.launcher import is_worker as _is_worker
from .base.program import is_command as _is_command
from .native.row_wise import row_wise

__version__ = '0.1.0'

# The command `mxhybrid` also looks at installations where importing MXNet fails, crashes or hangs.  For everybody else:
# under launch.py the same script also runs as server and scheduler, where importing MXNet serves until the job
# ends and nothing of ours is needed (mxhybrid.servers.pickled, which MXNet's server loads, imports what it uses) but
# row_wise, which stands above for modules of the user's that such a server imports.
_is_tool = _is_command()
if not _is_tool:
    import mxnet as _mxnet  # noqa: F401

if not _is_tool and _is_worker():
    import importlib as _importlib

    from .base.errors import CheckpointError, HybridError, InputError, JobError, SettingError
    from .base.settings import in_words as _in_words
    from .kvstore import hooks as _hooks
    from .kvstore.hybrid import Hybrid
    from .kvstore.prefetching import prefetch, prefetching

    _hooks.install()

    # Imported when they are first used: a script that splits no layers and saves no checkpoint does without them.
    _LATER = {'checkpoint': '.checkpoint', 'parallel': '.parallel', 'planner': '.planner',
              'parallelize': '.planner.parallelize'}

    def __getattr__(name):
        """Import the module that holds a name of the package when the name is first used."""
        if name not in _LATER:
            raise AttributeError('module %r has no attribute %r' % (__name__, name))
        module = _importlib.import_module(_LATER[name], __name__)
        value = module if name in ('checkpoint', 'parallel', 'planner') else getattr(module, name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted(set(globals()) | set(_LATER))

    def create(**settings):
        """Create a hybrid store; the same as ``mx.kv.create('hybrid')``, with settings.

        Parameters
        ----------
        **settings
            By name, see below; one that is None counts as not given.

        Returns
        -------
        Hybrid

        Raises
        ------
        SettingError
            A setting that cannot work, on any worker, or that is not the same on all of them.
        JobError
            The other processes did not arrive in time.
        """
        return Hybrid(**settings)

    create.__doc__ = (create.__doc__ or '') + _in_words()

    __all__ = ['CheckpointError', 'Hybrid', 'HybridError', 'InputError', 'JobError', 'SettingError', 'checkpoint',
               'create', 'parallel', 'parallelize', 'planner', 'prefetch', 'prefetching',
               'row_wise']
