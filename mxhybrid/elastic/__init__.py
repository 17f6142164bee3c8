"""Jobs that go on with other workers: samples that do not depend on the number of workers."""
import importlib as _importlib

# Imported at their first use: the launcher needs no MXNet.
_LATER = {'Samples': ('samples', 'Samples')}

__all__ = ['Samples']


def __getattr__(name):
    """Import the module of a name of the folder at its first use."""
    if name not in _LATER:
        raise AttributeError('module %r has no attribute %r' % (__name__, name))
    module, attribute = _LATER[name]
    globals()[name] = getattr(_importlib.import_module('.' + module, __name__), attribute)
    return globals()[name]


def __dir__():
    return sorted(set(globals()) | set(_LATER))
