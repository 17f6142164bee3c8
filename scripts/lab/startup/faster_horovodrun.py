"""Makes horovodrun start faster; `sitecustomize` imports this module when modules of Horovod are imported.

horovodrun first asks whether Horovod was built with Gloo, and imports MXNet in a process of its own to find out.  A
positive answer is kept in the directory of this module, together with the files and variables on which it depends.

horovodrun starts a process for each worker, which starts the worker's command and waits for its end
(``horovod/runner/common/util/safe_shell_exec.py``).  multiprocessing imports the script of the program there, and the
script imports the launcher, of which such a process uses nothing.
"""
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import sys

LAUNCHER, BUILDS = MODULES = 'horovod.runner.launch', 'horovod.common.util'
#: Variables that decide which libraries and modules MXNet and Horovod load.
VARIABLES = ('LD_LIBRARY_PATH', 'LD_PRELOAD', 'MXNET_LIBRARY_PATH')


def spec_of(name, path):
    """Return the spec of one of the modules, or None if it is imported as usual."""
    if name == LAUNCHER:
        # multiprocessing sets this attribute while it imports the script of the program.
        if getattr(multiprocessing.current_process(), '_inheriting', False):
            return importlib.machinery.ModuleSpec(name, EmptyLauncher())
        return None
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is not None:
        run_module = spec.loader.exec_module

        def exec_module(module):
            run_module(module)
            module.gloo_built = GlooBuilt(module)
        spec.loader.exec_module = exec_module
    return spec


class EmptyLauncher:
    """The loader of a module that replaces the launcher in processes that start workers."""

    @staticmethod
    def create_module(spec):
        """Return None: the import system creates a module of the usual type."""

    @staticmethod
    def get_code(name):
        """Return the code of the module, which defines the name that the script imports and does not call.

        multiprocessing runs it as the script of ``python -m horovod.runner.launch``.
        """
        return compile('run_commandline = None', name, 'exec')

    def exec_module(self, module):
        """Execute the code in a module."""
        exec(self.get_code(module.__name__), module.__dict__)


class GlooBuilt:
    """The function ``gloo_built`` of a module, with a kept answer.

    Parameters
    ----------
    module : module
        ``horovod.common.util``
    """

    def __init__(self, module):
        self._ask = module.gloo_built
        folder = os.path.dirname(os.path.dirname(module.__file__))
        self._libraries = [os.path.join(folder, extension, 'mpi_lib' + module.get_ext_suffix())
                           for extension in module.EXTENSIONS]

    def __call__(self, verbose=False):
        """Return whether Horovod was built with Gloo; None if its library cannot be imported."""
        if verbose:
            return self._ask(verbose=verbose)
        build = self._build()
        path = os.path.join(os.path.dirname(__file__), '__pycache__', 'gloo_built.%s.json' % hashlib.md5(
            repr(self._libraries).encode()).hexdigest()[:12])
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            if json.load(file) == build:
                return True
        answer = self._ask(verbose=verbose)
        if answer:
            scratch = '%s.%d' % (path, os.getpid())
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(scratch, 'w') as file:
                    json.dump(build, file)
                os.replace(scratch, path)
        return answer

    def _build(self):
        """Return all that the answer depends on: libraries, import path and variables."""
        spec = importlib.util.find_spec('mxnet')
        mxnet = spec.origin if spec is not None and spec.origin else 'mxnet'
        files = [*self._libraries, mxnet, os.path.join(os.path.dirname(mxnet), 'libmxnet.so')]
        return [[path, *state_of(path)] for path in files] + [sys.path] + [os.environ.get(name) for name in VARIABLES]


def state_of(path):
    """Return the size and the time of the last change of a file; an empty list if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]
