"""Finds the compilers for Horovod with NCCL, for scripts/install: CUDA's own, and a g++ that it takes.

    python scripts/cuda_compilers.py mxnet-cu112    # prints a line with nvcc, and one with the g++

Exits with 1, and says why, where there are none for the version of CUDA that the build of MXNet was made for.
"""
import os
import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path
from typing import List, Mapping, Tuple


def _on_path(name: str, path: str) -> List[str]:
    """Yield all programs of a name on a PATH, not only the first one: several versions of a toolkit may be installed.
    """
    return [os.path.join(folder, name) for folder in path.split(os.pathsep) if folder]


def _output(*argv: str, path: str) -> str:
    """Return the output of a program; '' if it fails or does not exist."""
    try:
        return subprocess.run(argv, env=dict(os.environ, PATH=path), check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, universal_newlines=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ''


def find(build: str, environ: Mapping[str, str]) -> Tuple[str, str]:
    """The paths of nvcc and of the newest g++ that it takes. CMake would give it the newest of all."""
    path, cuda = environ.get('PATH', os.defpath), build[-3:-1]
    homes = [environ[name] + '/bin/nvcc' for name in ('HOROVOD_CUDA_HOME', 'CUDA_HOME') if environ.get(name)]
    on_debian = '; on Debian 12: apt-get install %s' if cuda == '11' else ''
    for nvcc in homes + _on_path('nvcc', path) + sorted(glob('/usr/local/cuda*/bin/nvcc')):
        if re.search(r'release %s\.' % cuda, _output(nvcc, '--version', path=path)):
            nvcc = str(Path(nvcc).resolve())
            break
    else:
        raise SystemExit("nvcc of a CUDA %s toolkit is missing: install the toolkit, and name its folder in "
                         "HOROVOD_CUDA_HOME or PATH (PyPI's nvidia-cuda-nvcc-cu11 contains no nvcc)%s"
                         % (cuda, on_debian and on_debian % 'nvidia-cuda-toolkit (non-free)'))
    path = os.path.dirname(nvcc) + os.pathsep + path  # nvcc calls others by name
    for name in [environ.get('CXX') or 'g++'] + ['g++-%d' % version for version in range(14, 6, -1)]:
        compiler = shutil.which(name, path=environ.get('PATH'))
        # Nothing but CUDA's own header, which refuses compilers that are too new.
        if compiler and _output(nvcc, '-ccbin', compiler, '-x', 'cu', '-E', os.devnull, path=path):
            return nvcc, compiler
    raise SystemExit('%s accepts only g++ that is older than the installed ones: install one, and name it in CXX or '
                     'PATH%s'
                     % (nvcc, on_debian and on_debian % 'g++-11'))


if __name__ == '__main__':
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print('\n'.join(find(sys.argv[1], os.environ)))
