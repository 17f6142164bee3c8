"""Packaging of mxhybrid."""
import contextlib
import copy
import hashlib
import os
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

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
                                     '-pthread', '-fopenmp',  # with MXNet's own threads
                                     *('-I' + room for room in ROOMS)])

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
        folder = OBJECT_CACHE or os.path.join(self.build_temp, ext.name)
        os.makedirs(folder, exist_ok=True)
        linked = copy.copy(ext)
        linked.sources = []
        linked.depends = [*ext.depends, *ext.sources]  # setuptools links again if one of these is newer
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                linked.extra_objects = list(pool.map(
                    lambda source: compiled(source, ext.depends, command_line, folder), ext.sources))
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error
        super().build_extension(linked)
        for path in sorted(glob(os.path.join(folder, '*.o')), key=os.path.getmtime)[:-MAX_OBJECTS]:
            with contextlib.suppress(OSError):  # another build may have removed it
                os.remove(path)


def compiled(source, headers, command_line, folder):
    """Return the path of an object file, whose name depends on the compiler, its options, the source and the headers;
    compile the source if there is no such file.
    """
    digest = hashlib.sha256(subprocess.run([command_line[0], '--version'], check=True, stdout=subprocess.PIPE).stdout)
    digest.update(repr(command_line).encode())
    for name in [source, *sorted(headers)]:
        with open(name, 'rb') as file:
            digest.update(os.path.basename(name).encode() + file.read())
    path = os.path.join(folder, '%s-%s.o' % (os.path.basename(source), digest.hexdigest()[:24]))
    if os.path.exists(path):
        os.utime(path)
        return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch_path = os.path.join(scratch, 'object.o')
        subprocess.run([*command_line, '-c', source, '-o', scratch_path], check=True)
        os.replace(scratch_path, path)
    return path


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
                             'mypy', 'import-linter', 'pyarrow', 'redis'],
                    'parquet': ['pyarrow'],  # for mxhybrid checkpoint export --to parquet
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
