"""Processes that start faster have the same operators (scripts/lab/startup), and horovodrun starts the same workers."""
import os
import shutil
import subprocess
import sys

import pytest
from lab.launchers import HOROVODRUN, SCRIPTS

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


def run_python(arguments, folder=None, stderr=None):
    """Return the output of a Python process with a folder on its import path, or without the variable."""
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    if folder:
        environment['PYTHONPATH'] = str(folder)
    return subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.PIPE,
                          stderr=stderr, timeout=50).stdout


def operators(folder=None):
    """Return a digest of MXNet's operators in a process with a folder on its import path."""
    return run_python(['-c', PROGRAM, *(['cached'] if folder else [])], folder)


def test_operators_from_the_cache_are_those_that_mxnet_compiles(tmp_path):
    shutil.copy(str(SCRIPTS / 'lab' / 'startup' / 'sitecustomize.py'), str(tmp_path))
    expected = operators()
    assert operators(tmp_path) == expected  # fills the cache
    cache, = tmp_path.glob('__pycache__/mxnet_operators*')
    written = cache.stat().st_mtime_ns
    assert operators(tmp_path) == expected
    assert cache.stat().st_mtime_ns == written
    cache.write_bytes(cache.read_bytes()[:1000])
    assert operators(tmp_path) == expected and cache.stat().st_size > 1000


def test_horovodrun_asks_nothing_and_starts_workers():
    output = run_python(['-X', 'importtime', HOROVODRUN, '-np', '2', '--gloo', 'echo', 'a worker'],
                        stderr=subprocess.STDOUT)
    assert output.count(b':a worker') == 2
    assert output.count(b' horovod.runner.launch\n') == 1 and b' mxnet\n' not in output
