"""Checkpoints of a whole training: save and restore the weights of a net and the state of its Trainer.

:func:`open`, :func:`open_tables`, :func:`changes` and :func:`export` read tables of a checkpoint, without MXNet.
"""
import importlib as _importlib

# Imported at their first use: only the functions for a training need MXNet.
_LATER = {'Checkpoint': ('save_load', 'Checkpoint'), 'allgather': ('save_load', 'allgather'),
          'load': ('save_load', 'load'), 'save': ('save_load', 'save'), 'wait': ('background', 'wait'),
          'open': ('read_only', 'open_checkpoint'), 'compact': ('compaction', 'compact'),
          'import_rows': ('importing', 'import_rows'), 'export': ('exporting', 'export'),
          'changes': ('changing', 'changes'), 'open_tables': ('following', 'open_tables')}

__all__ = ['Checkpoint', 'allgather', 'changes', 'compact', 'export', 'import_rows', 'load', 'open', 'open_tables',
           'save', 'wait']


def __getattr__(name):
    """Import the module of a name of the folder at its first use."""
    if name not in _LATER:
        raise AttributeError('module %r has no attribute %r' % (__name__, name))
    module, attribute = _LATER[name]
    return getattr(_importlib.import_module('.' + module, __name__), attribute)


def __dir__():
    return sorted(set(globals()) | set(_LATER))
