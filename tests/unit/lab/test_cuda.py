"""The checks of scripts/install before it installs a build of MXNet for GPUs."""
import os
import shlex
import subprocess
import sys

import pytest
from lab.launchers import SCRIPTS

from ...helpers.no_driver import compile_no_driver

#: A compiler of a version of CUDA, which takes a g++ of some paths.
NVCC = '''#!/bin/sh
case "$*" in
    --version) echo "Cuda compilation tools, release %s, V%s.89" ;;
    "-ccbin "%s" -x cu -E /dev/null") echo "# 1" ;;
    *) exit 1 ;;
esac
'''


def ask(script, *args, path='', **variables):
    env = {name: value for name, value in os.environ.items() if name not in ('CUDA_HOME', 'HOROVOD_CUDA_HOME', 'CXX')}
    env.update(variables, PATH=os.pathsep.join([path, '/usr/bin', '/bin']) if path else '/usr/bin:/bin')
    return subprocess.run([sys.executable, str(SCRIPTS / script)] + list(args), env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60, check=False, universal_newlines=True)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def toolkit(folder, version, takes):
    return program(folder / 'bin' / 'nvcc', NVCC % (version, version, shlex.quote(str(takes))))


def test_the_compiler_of_the_builds_cuda_is_found(tmp_path):
    newer, older = tmp_path / 'newer', tmp_path / 'older'
    host = program(tmp_path / 'gcc' / 'g++-11', '')
    program(tmp_path / 'gcc' / 'g++', '')
    toolkit(newer, '13.0', host)
    nvcc = toolkit(older, '11.8', host)
    path = os.pathsep.join(str(folder) for folder in (newer / 'bin', older / 'bin', tmp_path / 'gcc'))
    found = ask('cuda_compilers.py', 'mxnet-cu112', path=path)
    assert (found.returncode, found.stdout.split()) == (0, [str(nvcc), str(host)])
    by_home = ask('cuda_compilers.py', 'mxnet-cu117', path=str(tmp_path / 'gcc'), HOROVOD_CUDA_HOME=str(older))
    assert by_home.stdout == found.stdout


def test_a_toolkit_that_takes_no_compiler_that_is_here(tmp_path):
    nvcc = toolkit(tmp_path, '11.8', '/nowhere/g++')
    found = ask('cuda_compilers.py', 'mxnet-cu112', CUDA_HOME=str(tmp_path))
    assert found.returncode == 1 and '%s accepts only g++ that is older' % nvcc in found.stdout
    assert 'apt-get install g++-11' in found.stdout


def test_no_toolkit_of_that_version(tmp_path):
    toolkit(tmp_path, '13.0', 'any')
    found = ask('cuda_compilers.py', 'mxnet-cu9999', path=str(tmp_path / 'bin'))
    assert found.returncode == 1 and 'nvcc of a CUDA 99 toolkit is missing' in found.stdout


@pytest.fixture(scope='module')
def driver(tmp_path_factory):
    """A folder with a driver that knows no device."""
    folder = tmp_path_factory.mktemp('driver')
    compile_no_driver(folder)
    return str(folder)


@pytest.mark.parametrize('build, missing', [
    ('mxnet-cu101', 'libcudnn.so.7'), ('mxnet-cu102', 'libcudart.so.10.2'), ('mxnet-cu110', 'libnvrtc.so.11.0'),
    ('mxnet-cu112', None), ('mxnet-cu117', None)])
def test_builds_name_the_libraries_that_they_lack(driver, build, missing):
    checked = ask('cuda_libraries.py', 'check', build, LD_LIBRARY_PATH=driver)
    if missing is None:
        assert (checked.returncode, checked.stdout) == (0, '')
        return
    assert checked.returncode == 1
    assert ('%s asks for ' % build) in checked.stdout and missing in checked.stdout
    assert 'take mxnet-cu112 or mxnet-cu117' in checked.stdout


def test_a_missing_build_is_refused_at_once(tmp_path):
    env = dict(os.environ, MXHYBRID_MXNET='mxnet-cu100', MXHYBRID_VENV=str(tmp_path / 'venv'))
    result = subprocess.run([str(SCRIPTS / 'install')], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            timeout=60, check=False, universal_newlines=True)
    assert result.returncode == 1 and not (tmp_path / 'venv').exists()
    assert 'mxnet-cu100: MXNet 1.9.1 is on PyPI as mxnet, mxnet-cu101, mxnet-cu102, mxnet-cu110,' in result.stdout
