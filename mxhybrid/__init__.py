"""mxhybrid: ``kvstore='hybrid'`` for MXNet 1.9.1 and Gluon.

``import mxhybrid``, pass ``kvstore='hybrid'`` to a standard ``gluon.Trainer`` and start the script with
``horovodrun``, MXNet's ``launch.py`` or plain ``python``.  row_sparse parameters then live in partitions on
parameter servers, dense parameters are summed by Horovod allreduce, as in Parallax (Kim et al., EuroSys 2019).
"""
import os as _os

from .entry import is_command as _is_command

__version__ = '0.1.0'

# The command `mxhybrid` also looks at installations where importing MXNet fails, crashes or hangs.  For everybody else:
# under launch.py the same script also runs as server and scheduler, where importing MXNet serves until the job
# ends and nothing of ours is needed (mxhybrid.handler, which MXNet's server loads, imports what it uses).
_is_tool = _is_command()
if not _is_tool:
    import mxnet as _mxnet  # noqa: F401

if not _is_tool and _os.environ.get('DMLC_ROLE', 'worker') == 'worker':
    from . import checkpoint
    from . import hooks as _hooks
    from .errors import CheckpointError, HybridError, InputError, JobError, SettingError
    from .prefetching import prefetch, prefetching
    from .store import Hybrid

    _hooks.install()

    def create(**settings):
        """Create a hybrid store; the same as ``mx.kv.create('hybrid')``, with settings.

        Parameters
        ----------
        **settings
            See :class:`Hybrid`.

        Returns
        -------
        Hybrid
        """
        return Hybrid(**settings)

    __all__ = ['CheckpointError', 'Hybrid', 'HybridError', 'InputError', 'JobError', 'SettingError', 'checkpoint',
               'create', 'prefetch', 'prefetching']
