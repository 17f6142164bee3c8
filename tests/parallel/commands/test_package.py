"""The wheel, in an environment that has MXNet and Horovod, but neither a compiler nor the checkout."""
import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from lab import jobs
from lab.launchers import HOROVODRUN, REPOSITORY

from mxhybrid.commands.launching import LAUNCHERS

from ...helpers.object_files import CACHE
from ...helpers.pages import SCRIPT

pytestmark = pytest.mark.both_pythons
COMPILERS = re.compile(r'(.*-)?(g\+\+|gcc|c\+\+|cc|cpp|clang|clang\+\+|ld|as|cmake|make)(-[\d.]+)?$')
#: The package's share of the import, in seconds of CPU: the least of three, as the machine may be busy.
IMPORT_S = 0.2
IMPORT = '''
import time, mxnet
before = time.process_time()
import mxhybrid
print('import', time.process_time() - before)
from mxhybrid.lane import library
from mxhybrid.planner.simulator.native_backend import planner_library
print('libraries', library.load().path, planner_library()._name)
'''


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """The paths of the sdist and of the wheel, which `python -m build` makes from the sdist."""
    folder = tmp_path_factory.mktemp('package')
    for name in ('mxhybrid', 'setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(str(source), str(folder / name), ignore=shutil.ignore_patterns('*.so', '__pycache__'))
        else:
            shutil.copy(str(source), str(folder))
    (folder / 'scripts').mkdir()
    shutil.copy(str(REPOSITORY / 'scripts' / 'object_files.py'), str(folder / 'scripts'))
    env = dict(os.environ, MXHYBRID_REQUIRE_COMPILED='1',
               MXHYBRID_OBJECT_CACHE=str(CACHE.with_name('extension-objects')))
    subprocess.run([sys.executable, '-m', 'build', '--no-isolation', str(folder)], env=env, check=True, timeout=240,
                   stdout=subprocess.DEVNULL)
    return [next((folder / 'dist').glob(pattern)) for pattern in ('*.tar.gz', '*.whl')]


@pytest.fixture(scope='module')
def installed(built, tmp_path_factory):
    """The environment with the wheel, and the variables of its commands: PATH leads to no compiler."""
    folder = tmp_path_factory.mktemp('installed')
    subprocess.run([sys.executable, '-m', 'venv', str(folder / 'venv')], check=True, timeout=120)
    bin_folder = folder / 'venv' / 'bin'
    subprocess.run([str(bin_folder / 'python'), '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index',
                    '--disable-pip-version-check', str(built[1])], check=True, timeout=120)
    # MXNet, Horovod and the rest; files *.pth in that folder, with the checkout, do not count.
    site, = (folder / 'venv' / 'lib').glob('*/site-packages')
    (site / 'mxnet_and_horovod.pth').write_text(sysconfig.get_path('purelib'))
    (bin_folder / 'horovodrun').write_text('#!%s\n%s' % (bin_folder / 'python', Path(HOROVODRUN).read_text()))
    (bin_folder / 'horovodrun').chmod(0o755)
    programs = folder / 'programs'
    programs.mkdir()
    for path in (path for name in ('/usr/bin', '/bin') for path in Path(name).iterdir()):
        if not COMPILERS.match(path.name) and not (programs / path.name).exists():
            (programs / path.name).symlink_to(path)
    return folder / 'venv', {'PATH': '%s:%s' % (bin_folder, programs), 'PYTHONPATH': None}


def run(installed, folder, *words):
    """The output of a command of the environment, outside the checkout."""
    venv, env = installed
    with jobs.start_command([str(venv / 'bin' / words[0]), *words[1:]], env=env, cwd=folder) as job:
        return job.wait(timeout=120).ok().output


def test_files(built):
    """The sdist has the sources of the compiled libraries; the wheel has the libraries, for every CPython."""
    sources = {path.relative_to(REPOSITORY).as_posix() for pattern in ('*.cc', '*.h', '*.py')
               for path in (REPOSITORY / 'mxhybrid').rglob(pattern)}
    with tarfile.open(str(built[0])) as archive:
        assert {name.partition('/')[2] for name in archive.getnames()} >= sources | {'LICENSE', 'README.md', 'setup.py'}
    assert re.fullmatch(r'mxhybrid-[\d.]+-py3-none-manylinux_2_\d+_%s\.whl' % os.uname().machine, built[1].name)
    with zipfile.ZipFile(str(built[1])) as archive:
        names = archive.namelist()
        described, = (email.message_from_bytes(archive.read(name)) for name in names if name.endswith('/METADATA'))
    assert [name for name in names if name.endswith('.so')] == [
        'mxhybrid/kernels/_compiled.so', 'mxhybrid/planner/simulator/_simulate.so']
    assert not [name for name in names if name.endswith(('.cc', '.h'))]
    assert set(described['Requires-Python'].split(',')) == {'>=3.8', '<3.12'}


def test_selftest(installed, tmp_path):
    venv, env = installed
    assert not shutil.which('g++', path=env['PATH']) and not shutil.which('gcc', path=env['PATH'])
    output = run(installed, tmp_path, 'mxhybrid', 'selftest', '-np', '2')
    assert output.count('[X]') == len(LAUNCHERS) and 'the results of all jobs are right' in output


def test_minimal_example(installed, tmp_path):
    (tmp_path / 'train.py').write_text(SCRIPT)
    for words in (['python', 'train.py'], ['horovodrun', '-np', '2', 'python', 'train.py']):
        output = run(installed, tmp_path, *words)
        assert len(re.findall(r'step 50, loss 0\.0\d\d\b', output)) == 1, output


def test_import(installed, tmp_path):
    """The package and its libraries come from the wheel, and the import is quick."""
    venv = installed[0]
    outputs = [run(installed, tmp_path, 'python', '-c', IMPORT) for _ in range(3)]
    libraries = re.search('libraries (.*) (.*)', outputs[0]).groups()
    assert all(str(venv) in path for path in libraries), outputs[0]
    assert min(float(re.search('import (.*)', output).group(1)) for output in outputs) <= IMPORT_S
