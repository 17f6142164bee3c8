"""Packaging of mxhybrid."""
import copy
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).resolve().parent / 'scripts'))
import object_files  # noqa: E402  (found by the line above)

# MXNet's library exports templates of the C++ library, which another compiler made.  The library of this package
# must call its own.
OWN = '-Wl,-Bsymbolic'

# scripts/install sets this variable: it has a compiler, so an error of the compiler ends the installation.
OPTIONAL = not os.environ.get('MXHYBRID_REQUIRE_COMPILED')

# ctypes calls the library, which uses nothing of Python's.  If it cannot be compiled, rows travel by ps-lite.
# It has the sources of three folders.
ROOMS = ['mxhybrid/kernels/src', 'mxhybrid/row_store/src', 'mxhybrid/lane/src']
LANE = Extension('mxhybrid.kernels._compiled', sorted(path for room in ROOMS for path in glob(room + '/*/*.cc')),
                 depends=[path for room in ROOMS for path in glob(room + '/*/*.h')], language='c++',
                 optional=OPTIONAL, extra_link_args=['-pthread', '-fopenmp', '-lrt', OWN],
                 # Multiplications and additions are not contracted: sums and updates have the same bits on every
                 # machine, and those of MXNet.  A square root that sets errno would not be vectorized.
                 extra_compile_args=['-std=c++17', '-O3', '-ffp-contract=off', '-fno-math-errno', '-Wall', '-Wextra',
                                     '-pthread', '-fopenmp'],  # with MXNet's own threads
                 include_dirs=ROOMS)

# The simulator of the planner, and the builder of its tasks.  If they cannot be compiled, there is no planner.
SIMULATE = Extension('mxhybrid.planner.simulator._simulate', sorted(glob('mxhybrid/planner/simulator/src/*.cc')),
                     depends=glob('mxhybrid/planner/simulator/src/*.h'), language='c++', optional=OPTIONAL,
                     extra_link_args=[OWN],
                     # Not contracted: the same bits as the Python programs in tests/oracles.
                     extra_compile_args=['-std=c++17', '-O3', '-ffp-contract=off', '-Wall', '-Wextra'])

#: A folder that keeps object files from build to build, and the most files in it.
OBJECT_CACHE = os.environ.get('MXHYBRID_OBJECT_CACHE', '')
MAX_OBJECTS = 300


class BuildObjects(build_ext):
    """Compile the sources of an extension at the same time, and with the same options for every CPython.

    No source includes a header of Python, so that all CPythons share the object files in the cache.
    """

    def build_extension(self, ext):
        """Compile the sources that are not in the cache, and link all object files."""
        command_line = [*shlex.split(os.environ.get('CXX') or 'g++'), '-fPIC', '-DNDEBUG', '-g', '-fwrapv',
                        *shlex.split(os.environ.get('CFLAGS', '')), *ext.extra_compile_args]
        folder, includes = Path(OBJECT_CACHE or os.path.join(self.build_temp, ext.name)), [*map(Path, ext.include_dirs)]
        linked = copy.copy(ext)
        linked.sources = []
        linked.depends = [*ext.depends, *ext.sources]  # setuptools links again if one of these is newer
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                linked.extra_objects = list(pool.map(
                    lambda source: str(object_files.compiled(Path(source), command_line, includes, folder)),
                    ext.sources))
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error
        super().build_extension(linked)
        object_files.remove_oldest(folder, MAX_OBJECTS)


setup(
    name='mxhybrid',
    version='0.1.0',
    description='KVStore for Apache MXNet: row_sparse parameters on servers, dense ones summed among workers',
    license='Apache-2.0',
    packages=find_packages(include=['mxhybrid*']),
    package_data={'mxhybrid': ['%s/*/*' % room.partition('/')[2] for room in ROOMS],
                  'mxhybrid.planner.simulator': ['src/*']},
    ext_modules=[LANE, SIMULATE],
    cmdclass={'build_ext': BuildObjects},
    entry_points={'console_scripts': ['mxhybrid = mxhybrid.commands.main:main']},
    python_requires='>=3.8,<3.12',
    # Neither mxnet nor horovod is a requirement: there are several builds of MXNet, and Horovod has to be compiled
    # for the one that is installed (see scripts/install).
    install_requires=['numpy<1.24', 'tqdm', 'safetensors', 'xxhash'],
    extras_require={'test': ['pytest', 'pytest-timeout', 'pytest-xdist', 'hypothesis', 'psutil', 'matplotlib', 'ruff',
                             'mypy', 'import-linter'],
                    'plot': ['matplotlib']},  # for pictures: scripts/bench --plot, mxhybrid report, mxhybrid partitions
    classifiers=[
        'License :: OSI Approved :: Apache Software License',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3.8',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)
