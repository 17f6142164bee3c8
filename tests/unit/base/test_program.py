"""The commands that work without MXNet get a package that does not import it."""
import os
import subprocess
import sys

import pytest
from lab.launchers import REPOSITORY

from mxhybrid.base.program import module_that_runs

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize('line, module', [
    ('python -m mxhybrid doctor', 'mxhybrid'), ('python -mmxhybrid', 'mxhybrid'), ('python -Sum mxhybrid', 'mxhybrid'),
    ('python -W error -X dev -m mxhybrid.commands.report -m other', 'mxhybrid.commands.report'),
    ('python -Werror -m a', 'a'),
    ('python train.py -m mxhybrid', None), ('python -c pass -m mxhybrid', None), ('python', None), ('python -', None),
    ('python --check-hash-based-pycs always -m mxhybrid', 'mxhybrid'), ('python -m', None)])
def test_module_that_runs(line, module):
    assert module_that_runs(line.split()) == module


def imports_mxnet(argv, directory):
    """Return whether MXNet would be imported; a package that says so and fails takes its place."""
    package = directory / 'mxnet'
    package.mkdir(exist_ok=True)
    (package / '__init__.py').write_text('raise ImportError("this is where MXNet would be")\n')
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(directory), str(REPOSITORY)]))
    result = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    return b'this is where MXNet would be' in result.stdout


@pytest.mark.parametrize('module, needs', [
    ('mxhybrid', False), ('mxhybrid.commands.partitions', False), ('mxhybrid.commands.report', False),
    ('mxhybrid.servers.main', True), ('mxhybrid.servers.scheduler', True), ('mxhybrid.commands.sanity', True),
    ('mxhybrid.commands.checks.try_joining', True)])
def test_modules(tmp_path, module, needs):
    assert imports_mxnet([sys.executable, '-m', module, '--help'], tmp_path) == needs


@pytest.mark.parametrize('name, text, needs', [
    ('mxhybrid', 'from mxhybrid.commands.main import main\nmain(["--help"])\n', False),
    ('mxhybrid', 'import mxhybrid\n', True),  # somebody's own script of that name trains
    ('train.py', 'from mxhybrid.commands.main import main\n', True)])
def test_scripts(tmp_path, name, text, needs):
    script = tmp_path / name
    script.write_text(text)
    assert imports_mxnet([sys.executable, str(script)], tmp_path) == needs


def test_a_program_that_trains_has_everything():
    code = 'import mxhybrid, sys; sys.exit(not (mxhybrid.create and "mxnet" in sys.modules))'
    env = dict(os.environ, PYTHONPATH=str(REPOSITORY))
    assert subprocess.run([sys.executable, '-c', code], env=env, timeout=60).returncode == 0
