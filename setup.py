"""Packaging of mxhybrid."""
import copy
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError
from wheel.bdist_wheel import bdist_wheel

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
                 # The sdist has these files, too.
                 depends=['scripts/object_files.py', *(path for room in ROOMS for path in glob(room + '/*/*.h'))],
                 language='c++',
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

with open('mxhybrid/__init__.py') as package:
    VERSION, = re.findall("^__version__ = '(.*)'$", package.read(), re.MULTILINE)

#: A folder that keeps object files from build to build, and the most files in it.
OBJECT_CACHE = os.environ.get('MXHYBRID_OBJECT_CACHE', '')
MAX_OBJECTS = 300


class BuildObjects(build_ext):
    """Compile the sources of an extension at the same time, and with the same options for every CPython.

    No source includes a header of Python, so that all CPythons share the object files in the cache, and one wheel.
    """

    def finalize_options(self):
        """Note whether the libraries are for a wheel."""
        self.is_for_wheel = not (self.inplace or self.editable_mode)
        super().finalize_options()

    def get_ext_filename(self, fullname):
        """Return the name of a library without that of a CPython in a wheel.  In a checkout every CPython has its own:
        a build for one replaces no library that another has loaded.
        """
        name = super().get_ext_filename(fullname)
        return name.partition('.')[0] + '.so' if self.is_for_wheel else name

    def build_extension(self, ext):
        """Compile the sources that are not in the cache, and link all object files."""
        command_line = [*shlex.split(os.environ.get('CXX') or 'g++'), '-fPIC', '-DNDEBUG', '-g', '-fwrapv',
                        *shlex.split(os.environ.get('CFLAGS', '')), *ext.extra_compile_args]
        folder, includes = Path(OBJECT_CACHE or os.path.join(self.build_temp, ext.name)), [*map(Path, ext.include_dirs)]
        linked = copy.copy(ext)
        linked.sources = []
        linked.depends = [*ext.depends, *ext.sources]  # setuptools links again if one of these is newer
        if self.is_for_wheel:
            linked.extra_link_args = [*ext.extra_link_args, '-Wl,--strip-debug']
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                linked.extra_objects = list(pool.map(
                    lambda source: str(object_files.compiled(Path(source), command_line, includes, folder)),
                    ext.sources))
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error
        super().build_extension(linked)
        object_files.remove_oldest(folder, MAX_OBJECTS)


class SharedWheel(bdist_wheel):
    """Label the wheel for every CPython, and for the C library that its compiled libraries need.

    MXNet's own library needs the other libraries, libstdc++ and libgomp, too.
    """

    def get_tag(self):
        """Return the tags: of a Python, of its binary interface, and of a platform."""
        platform = super().get_tag()[2]
        needed = [int(minor) for path in glob(os.path.join(self.bdist_dir, 'mxhybrid', '**', '_*.so'), recursive=True)
                  for minor in re.findall(rb'\0GLIBC_2\.(\d+)', open(path, 'rb').read())]
        if needed:
            platform = platform.replace('linux_', 'manylinux_2_%d_' % max(needed), 1)
        return 'py3', 'none', platform


setup(
    name='mxhybrid',
    version=VERSION,
    description='KVStore for Apache MXNet: row_sparse parameters on servers, dense ones summed among workers',
    license='Apache-2.0',
    packages=find_packages(include=['mxhybrid*']),
    ext_modules=[LANE, SIMULATE],
    cmdclass={'build_ext': BuildObjects, 'bdist_wheel': SharedWheel},
    entry_points={'console_scripts': ['mxhybrid = mxhybrid.commands.main:main']},
    python_requires='>=3.8,<3.12',
    # Neither mxnet nor horovod is a requirement: there are several builds of MXNet, and Horovod has to be compiled
    # for the one that is installed (see scripts/install).
    install_requires=['numpy<1.24', 'tqdm', 'safetensors', 'xxhash'],
    extras_require={'test': ['build', 'pytest', 'pytest-timeout', 'pytest-xdist', 'hypothesis', 'psutil', 'matplotlib',
                             'ruff', 'mypy', 'import-linter', 'pyarrow', 'redis', 'onnx'],
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
