"""Finds the CUDA libraries that an installed ``mxnet-cu*`` asks for, for scripts/install.

    python scripts/cuda_libraries.py check mxnet-cu112  # looks for what PyPI cannot bring, before that is installed
    python scripts/cuda_libraries.py packages           # prints what to install from PyPI, one requirement a line
    python scripts/cuda_libraries.py link               # puts their libraries where the loader looks

``libmxnet.so`` has the run path ``$ORIGIN``, which counts for whatever its libraries ask for, too: links beside it are
found by ``import mxnet`` alone, without LD_LIBRARY_PATH. All exit with 1, and say why, where something cannot be had.
"""
import ctypes
import os
import platform
import re
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Dict, List

REQUIREMENTS = Path(__file__).with_name('requirements-cuda.txt')
#: Libraries of CUDA, cuDNN and NCCL; libcuda comes with the driver.
_OF_CUDA = re.compile(r'lib(cu|nccl|nv)\w*\.so')
_DRIVER = 'libcuda.so.1'
_IN_ALL = ('libnccl.so.2', 'libcufft.so.10', 'libcurand.so.10', 'libnvToolsExt.so.1')
_OF_CUDA_10 = _IN_ALL + ('libcublas.so.10', 'libcusolver.so.10')
#: Libraries of the builds that need a toolkit, since PyPI lacks some: its CUDA 11.8 does not work with older parts.
_OF_TOOLKITS = {
    'mxnet-cu101': _OF_CUDA_10 + ('libcudart.so.10.1', 'libnvrtc.so.10.1', 'libcudnn.so.7'),
    'mxnet-cu102': _OF_CUDA_10 + ('libcudart.so.10.2', 'libnvrtc.so.10.2', 'libcudnn.so.8'),
    'mxnet-cu110': _IN_ALL + ('libcudart.so.11.0', 'libcublas.so.11', 'libcusolver.so.10', 'libnvrtc.so.11.0',
                              'libcudnn.so.8'),
}


def mxnet_directory() -> Path:
    """Find the directory where MXNet is installed, without importing MXNet, which may fail."""
    spec = util.find_spec('mxnet')
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit('MXNet is not installed')
    return Path(spec.submodule_search_locations[0])


def needed(library: Path) -> List[str]:
    """The CUDA libraries that a library asks for, by name."""
    env = dict(os.environ, LC_ALL='C')
    listed = subprocess.run(['readelf', '-d', str(library)], env=env, check=True, stdout=subprocess.PIPE,
                            universal_newlines=True).stdout
    names = re.findall(r'\(NEEDED\).*\[(.+)\]', listed)
    return [name for name in names if _OF_CUDA.match(name)]


def is_loadable(name: str) -> bool:
    """Return whether the loader finds a library by itself, in a CUDA toolkit or in the driver."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def on_pypi() -> Dict[str, str]:
    """The requirement that brings a library, by its name."""
    listed = re.findall(r'^([^#\s]+)\s+# (\S+)$', REQUIREMENTS.read_text(), re.MULTILINE)
    return {library: requirement for requirement, library in listed}


def check(build: str) -> None:
    """Refuse to go on without the libraries of the driver and, for some builds, of a CUDA toolkit."""
    if platform.machine() != 'x86_64':
        raise SystemExit('MXNet for GPUs is on PyPI for x86_64 only, and this is %s' % platform.machine())
    if not is_loadable(_DRIVER):
        raise SystemExit("%s is missing, which comes with NVIDIA's driver; without it no MXNet for GPUs can be "
                         'imported: install the driver, or install on a machine that has a GPU' % _DRIVER)
    lacking = sorted(name for name in _OF_TOOLKITS.get(build, ()) if not is_loadable(name))
    if lacking:
        raise SystemExit('%s asks for %s, which the loader does not find, and PyPI has no CUDA %s.%s. Install that '
                         'toolkit, its cuDNN and NCCL, so that the loader finds them (ldconfig or LD_LIBRARY_PATH); or '
                         'take mxnet-cu112 or mxnet-cu117, for which PyPI has everything'
                         % (build, ', '.join(lacking), build[-3:-1], build[-1]))


def packages() -> List[str]:
    """Return the requirements for libraries that the loader does not find."""
    lacking = [name for name in needed(mxnet_directory() / 'libmxnet.so') if not is_loadable(name)]
    known = on_pypi()
    foreign = [name for name in lacking if name not in known]
    if foreign:
        raise SystemExit('libmxnet.so asks for %s, which neither the loader nor %s knows'
                         % (', '.join(foreign), REQUIREMENTS))
    return sorted({known[name] for name in lacking})


def link() -> None:
    """Link the libraries of all installed packages of the list beside libmxnet.so."""
    directory = mxnet_directory()
    for requirement in on_pypi().values():
        try:
            files = metadata.files(requirement.split('==')[0]) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if '.so' in file.name:
                link_path, target = directory / file.name, Path(str(file.locate()))
                if link_path.is_symlink():
                    link_path.unlink()
                if not link_path.exists():
                    link_path.symlink_to(os.path.relpath(str(target.resolve()), str(directory.resolve())))


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ['packages']:
        print('\n'.join(packages()))
    elif len(sys.argv) == 3 and sys.argv[1] == 'check':
        check(sys.argv[2])
    elif sys.argv[1:] == ['link']:
        link()
    else:
        raise SystemExit(__doc__)


if __name__ == '__main__':
    main()
