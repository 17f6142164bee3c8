"""Makes processes of jobs start faster: Python imports this module at its start, if its folder is on PYTHONPATH.

MXNet writes the source and the documentation of a Python function for each operator when it is imported, and compiles
it: 2,500 functions, which take most of the time of the import.  Jobs start many processes, so the compiled functions
and their documentation are stored in the directory of this module, as compiled modules are in ``__pycache__``.

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

#: Modules that compile such functions: the function that writes a source, and the text before the handle.
MODULES = {'mxnet.ndarray.register': ('_generate_ndarray_function_code', '_imperative_invoke('),
           'mxnet.symbol.register': ('_generate_symbol_function_code', '_symbol_creator(')}
#: Stands for a handle in the compiled functions.
PLACEHOLDER = 8888888888888888


def cache_of(folder):
    """Return the path of the file of compiled functions, for this Python and the library in a folder of MXNet."""
    library = os.stat(os.path.join(folder, 'libmxnet.so'))
    build = hashlib.md5(repr((folder, library.st_size, library.st_mtime_ns)).encode()).hexdigest()[:12]
    return os.path.join(os.path.dirname(__file__), '__pycache__', 'mxnet_operators.%s-%s-%s.marshal' % (
        sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER.hex(), build))


class CompiledFunctions(dict):
    """The code object and the documentation of functions, by module, operator and name; read at the first use."""

    path, stored = None, 0

    def open(self, folder):
        """Read the file for the library in a folder of MXNet, once."""
        if self.path is None:
            self.path = cache_of(folder)
            with contextlib.suppress(OSError, ValueError, EOFError, TypeError), open(self.path, 'rb') as file:
                self.update(marshal.loads(file.read()))
            self.stored = len(self)
            atexit.register(self.save)

    def save(self):
        """Write the file, if there are functions that it lacks."""
        if len(self) > self.stored:
            scratch = '%s.%d' % (self.path, os.getpid())
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                with open(scratch, 'wb') as file:
                    file.write(marshal.dumps(dict(self)))
                os.replace(scratch, self.path)


FUNCTIONS = CompiledFunctions()


def with_handle(code, handle):
    """Return a code object of a module whose functions have a handle in the place of the placeholder."""
    return code.replace(co_consts=tuple(
        inner.replace(co_consts=tuple(handle if const == PLACEHOLDER else const for const in inner.co_consts))
        if isinstance(inner, types.CodeType) else inner for inner in code.co_consts))


class Finder:
    """The finder of the modules that are imported faster; their specs execute them in another way."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the spec of one of these modules, else None."""
        if name in MODULES and 'MXNET_LIBRARY_PATH' not in os.environ:
            return with_operators(importlib.machinery.PathFinder.find_spec(name, path))
        return None


def is_being_imported(name):
    """Return whether a module is being imported now."""
    spec = getattr(sys.modules.get(name), '__spec__', None)
    return bool(getattr(spec, '_initializing', False))


def with_operators(spec):
    """Change the spec of a module that compiles functions of operators so that it uses the cache; return the spec."""
    if spec is not None:
        run_module = spec.loader.exec_module

        def exec_module(module):
            with contextlib.suppress(OSError):  # without the library, the import fails as usual
                FUNCTIONS.open(os.path.dirname(os.path.dirname(spec.origin)))
                module.exec = Operators(module.__dict__, spec.name).execute
            run_module(module)
        spec.loader.exec_module = exec_module
    return spec


class Operators:
    """The functions of operators that a module of MXNet makes while MXNet is imported.

    The module has no function that writes sources before it is run, so the first operator comes without the cache.
    """

    def __init__(self, module_globals, name):
        self._globals, self._name = module_globals, name
        self._writer, self._text_before_handle = MODULES[name]
        self._write = None

    def execute(self, source, _, local_names):
        """Run code in the module, as `exec` does."""
        if self._write is None:
            self._write = self._globals[self._writer]
            self._globals[self._writer] = self.written
        builtins.exec(source, self._globals, local_names)

    def written(self, handle, operator, function, signature_only=False):
        """Return the code and the documentation of an operator's function, as MXNet's function does."""
        # Operators of libraries that scripts load come later, and other libraries may have the same names.
        if signature_only or not is_being_imported('mxnet'):
            return self._write(handle, operator, function, signature_only)
        key = '%s %s %s' % (self._name, operator, function)
        if key not in FUNCTIONS:
            source, documentation = self._write(handle, operator, function)
            start = end = source.rindex(self._text_before_handle) + len(self._text_before_handle)
            while source[end].isdigit():
                end += 1
            code = compile('%s%d%s' % (source[:start], PLACEHOLDER, source[end:]), '<string>', 'exec')
            FUNCTIONS[key] = code, documentation
        code, documentation = FUNCTIONS[key]
        return with_handle(code, handle.value), documentation


sys.meta_path.insert(0, Finder)
