"""Makes the import of MXNet faster: Python imports this module at its start, if its folder is on PYTHONPATH.

MXNet writes the source of a Python function for each operator when it is imported, and compiles it: 2,500 functions,
which take half of the time of the import.  Jobs start many processes, so the compiled functions are kept beside this
module, as those of any module are in ``__pycache__``.

An operator's handle, which is an address, is the only part of the source that differs between processes
(``mxnet/ndarray/register.py``, ``mxnet/symbol/register.py``).
"""
import atexit
import builtins
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import types

#: Modules that compile such functions, and the text before the handle.
MODULES = {'mxnet.ndarray.register': '_imperative_invoke(', 'mxnet.symbol.register': '_symbol_creator('}
#: Stands for a handle in the compiled functions.
PLACEHOLDER = 8888888888888888
CACHE = os.path.join(os.path.dirname(__file__), '__pycache__', 'mxnet_operators.%s-%s.marshal' % (
    sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER.hex()))


class CompiledFunctions:
    """Compiled functions of this process, by a digest of their source; read from the file when one is needed."""

    def __init__(self):
        self._codes, self._has_new = None, False

    def get(self, source):
        """Return the code object of a source."""
        if self._codes is None:
            self._codes = {}
            with contextlib.suppress(OSError, ValueError, EOFError, TypeError), open(CACHE, 'rb') as file:
                self._codes = marshal.loads(file.read())
            atexit.register(self.save)
        key = hashlib.md5(source.encode()).digest()
        if key not in self._codes:
            self._codes[key], self._has_new = compile(source, '<string>', 'exec'), True
        return self._codes[key]

    def save(self):
        """Write the file, if there are functions that it lacks."""
        if self._has_new:
            scratch = '%s.%d' % (CACHE, os.getpid())
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(CACHE), exist_ok=True)
                with open(scratch, 'wb') as file:
                    file.write(marshal.dumps(self._codes))
                os.replace(scratch, CACHE)


FUNCTIONS = CompiledFunctions()


def with_handle(code, handle):
    """Return a code object of a module whose functions have a handle in the place of the placeholder."""
    return code.replace(co_consts=tuple(
        inner.replace(co_consts=tuple(handle if const == PLACEHOLDER else const for const in inner.co_consts))
        if isinstance(inner, types.CodeType) else inner for inner in code.co_consts))


class Finder:
    """Finds the modules of MXNet that compile functions, and gives them an ``exec`` that uses the cache."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the spec of one of these modules, else None."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in MODULES else None
        if spec is not None:
            run_module = spec.loader.exec_module

            def exec_module(module):
                module.exec = exec_with_cache(module.__dict__, MODULES[name])
                run_module(module)
            spec.loader.exec_module = exec_module
        return spec


def exec_with_cache(module_globals, text_before_handle):
    """Return a function that does what `exec` does in a module, for sources with a handle."""
    def execute(source, _, local_names):
        start = end = source.rindex(text_before_handle) + len(text_before_handle)
        while source[end].isdigit():
            end += 1
        code = FUNCTIONS.get('%s%d%s' % (source[:start], PLACEHOLDER, source[end:]))
        builtins.exec(with_handle(code, int(source[start:end])), module_globals, local_names)
    return execute


sys.meta_path.insert(0, Finder)
