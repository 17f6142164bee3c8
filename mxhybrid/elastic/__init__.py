"""Elastic jobs: a job continues from its last commit on the hosts that are left, see :class:`State`.

``mxhybrid run`` launches them (:mod:`mxhybrid.elastic.launcher`).  A generation ends as every job does, and another one
starts; keepers (:mod:`mxhybrid.elastic.keeper`), which outlive it, hold the commits in memory.  :class:`Samples` do not
depend on the number of workers.
"""
import importlib as _importlib

# Imported at their first use: the launcher and the keepers work without MXNet.
_LATER = {'Samples': 'samples', 'State': 'state'}

__all__ = ['Samples', 'State']


def __getattr__(name):
    """Import the module of a name of the folder at its first use."""
    if name not in _LATER:
        raise AttributeError('module %r has no attribute %r' % (__name__, name))
    return getattr(_importlib.import_module('.' + _LATER[name], __name__), name)


def __dir__():
    return sorted(set(globals()) | set(_LATER))
