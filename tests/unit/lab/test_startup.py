"""scripts/lab/startup: processes that start faster have the same operators and learn the same about Horovod."""
import importlib.util
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from lab.launchers import SCRIPTS

pytestmark = pytest.mark.both_pythons

#: Prints a digest of the code and the documentation of all operators, without addresses, after it has run some.
PROGRAM = """
import hashlib, os, sys, types
import mxnet as mx
assert ('sitecustomize' in sys.modules and hasattr(sys.modules['sitecustomize'], 'FUNCTIONS')) == (len(sys.argv) > 1)

def text_of(code):
    return [code.co_name, code.co_code, code.co_varnames, code.co_names, code.co_filename, code.co_firstlineno] + [
        text_of(const) if isinstance(const, types.CodeType) else const for const in code.co_consts
        if not (isinstance(const, int) and const > 1 << 32)]

functions = {}
for name, module in sorted(sys.modules.items()):
    if name.startswith('mxnet.') and ('ndarray' in name or 'symbol' in name or 'numpy' in name):
        functions.update({name + '.' + key: (text_of(value.__code__), value.__doc__)
                          for key, value in vars(module).items()
                          if isinstance(value, types.FunctionType) and value.__code__.co_filename == '<string>'})
assert len(functions) > 1500
data = mx.nd.array([[1, -2, 3]])
assert mx.nd.relu(data).asnumpy().tolist() == [[1, 0, 3]] and float(mx.np.sum(mx.np.ones(3))) == 3
assert mx.sym.relu(mx.sym.var('data')).eval(data=data)[0].asnumpy().tolist() == [[1, 0, 3]]
print(hashlib.md5(repr(functions).encode()).hexdigest())
"""


STARTUP = SCRIPTS / 'lab' / 'startup'
#: Starts a process as horovodrun does. Both processes print whether the launcher was imported.
STARTING_PROGRAM = """
import multiprocessing
from horovod.runner.launch import run_commandline

def say_whether_launcher_is_usable():
    print(run_commandline is not None, flush=True)

if __name__ == '__main__':
    say_whether_launcher_is_usable()
    process = multiprocessing.get_context('spawn').Process(target=say_whether_launcher_is_usable)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


def run_python(arguments, folder=None):
    """Return the output of a Python process with a folder on its import path, or without the variable."""
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    if folder:
        environment['PYTHONPATH'] = str(folder)
    return subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.PIPE,
                          timeout=50).stdout


def operators(folder=None):
    """Return a digest of MXNet's operators in a process with a folder on its import path."""
    return run_python(['-c', PROGRAM, *(['cached'] if folder else [])], folder)


def test_operators_from_the_cache_are_those_that_mxnet_compiles(tmp_path):
    shutil.copy(str(STARTUP / 'sitecustomize.py'), str(tmp_path))
    expected = operators()
    assert operators(tmp_path) == expected  # fills the cache
    cache, = tmp_path.glob('__pycache__/mxnet_operators*')
    written = cache.stat().st_mtime_ns
    assert operators(tmp_path) == expected
    assert cache.stat().st_mtime_ns == written
    cache.write_bytes(cache.read_bytes()[:1000])
    assert operators(tmp_path) == expected and cache.stat().st_size > 1000


COLLECTOR_PROGRAM = """
import gc, sys
try:
    import mxnet
except ImportError:
    print('failed')
assert gc.isenabled()
print(gc.get_freeze_count() > 10000)
"""


def test_the_garbage_collector_runs_after_the_import(tmp_path):
    assert run_python(['-c', COLLECTOR_PROGRAM], STARTUP) == b'True\n'
    assert run_python(['-c', COLLECTOR_PROGRAM]) == b'False\n'
    (tmp_path / 'mxnet').mkdir()
    (tmp_path / 'mxnet' / '__init__.py').write_text('import gc\nprint(gc.isenabled())\nimport no_such_module\n')
    assert run_python(['-c', COLLECTOR_PROGRAM], '%s:%s' % (STARTUP, tmp_path)).split()[:2] == [b'False', b'failed']


def test_a_process_that_starts_a_worker_imports_no_launcher(tmp_path):
    script = tmp_path / 'start.py'
    script.write_text(STARTING_PROGRAM)
    assert run_python([script]).split() == [b'True', b'True']
    assert run_python([script], STARTUP).split() == [b'True', b'False']


def test_horovodrun_runs_as_a_module():
    output = run_python(['-m', 'horovod.runner.launch', '-np', '2', '--gloo', 'echo', 'a worker'], STARTUP)
    assert output.count(b':a worker') == 2


def load_faster_horovodrun(folder):
    """Return the module `faster_horovodrun`, with a cache of its own in a folder."""
    path = folder / 'faster_horovodrun.py'
    if not path.exists():
        shutil.copy(str(STARTUP / 'faster_horovodrun.py'), str(path))
    spec = importlib.util.spec_from_file_location('faster_horovodrun', str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Builds:
    """The module ``horovod.common.util`` as `faster_horovodrun` uses it; counts the questions."""

    EXTENSIONS = ('torch', 'mxnet')

    def __init__(self, folder):
        self.answer, self.questions = True, 0
        self.__file__ = str(folder / 'horovod' / 'common' / 'util.py')
        self.library = folder / 'horovod' / 'mxnet' / 'mpi_lib.so'
        self.library.parent.mkdir(parents=True)
        self.library.write_bytes(b'built')
        self.startup = folder / 'startup'
        self.startup.mkdir()

    @staticmethod
    def get_ext_suffix():
        return '.so'

    def gloo_built(self, verbose=False):
        self.questions += 1
        return self.answer

    def is_asked(self, verbose=False):
        """Return whether a new process asks Horovod's library, and check its answer."""
        before = self.questions
        assert load_faster_horovodrun(self.startup).GlooBuilt(self)(verbose=verbose) is self.answer
        return self.questions > before


@pytest.fixture
def builds(tmp_path):
    return Builds(tmp_path)


def test_the_answer_about_gloo_is_kept(builds):
    assert builds.is_asked()
    assert not builds.is_asked() and not builds.is_asked()
    assert builds.is_asked(verbose=True)
    cache, = builds.startup.glob('__pycache__/gloo_built*')
    cache.write_text(cache.read_text()[:20])
    assert builds.is_asked() and not builds.is_asked()


@pytest.mark.parametrize('answer', [False, None])
def test_only_a_positive_answer_about_gloo_is_kept(builds, answer):
    builds.answer = answer
    assert builds.is_asked() and builds.is_asked()
    builds.answer = True
    assert builds.is_asked() and not builds.is_asked()


@pytest.mark.parametrize('change', ['other library', 'no library', 'another extension', 'import path', 'mxnet',
                                    'LD_LIBRARY_PATH', 'LD_PRELOAD', 'MXNET_LIBRARY_PATH'])
def test_changes_that_discard_the_answer_about_gloo(builds, tmp_path, monkeypatch, change):
    assert builds.is_asked() and not builds.is_asked()
    if change == 'other library':
        builds.library.write_bytes(b'build')
        os.utime(str(builds.library), ns=(0, 1))
    elif change == 'no library':
        builds.library.unlink()
    elif change == 'another extension':
        library = builds.library.parent.parent / 'torch' / 'mpi_lib.so'
        library.parent.mkdir()
        library.write_bytes(b'built')
    elif change == 'import path':
        monkeypatch.syspath_prepend(str(tmp_path))
    elif change == 'mxnet':
        monkeypatch.setattr(importlib.util, 'find_spec', lambda name: SimpleNamespace(origin='/elsewhere/__init__.py'))
    else:
        monkeypatch.setenv(change, '/elsewhere')
    assert builds.is_asked() and not builds.is_asked()


QUESTION = 'from horovod.common.util import gloo_built; print(type(gloo_built).__name__, gloo_built())'


def test_horovod_is_asked_about_gloo_as_usual(tmp_path):
    assert run_python(['-c', QUESTION]) == b'function True\n'
    for name in ('sitecustomize.py', 'faster_horovodrun.py'):
        shutil.copy(str(STARTUP / name), str(tmp_path))
    assert run_python(['-c', QUESTION], tmp_path) == b'GlooBuilt True\n'
    assert list(tmp_path.glob('__pycache__/gloo_built*'))
    assert run_python(['-c', QUESTION], tmp_path) == b'GlooBuilt True\n'
