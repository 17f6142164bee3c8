"""Packaging of mxhybrid."""
import os
from glob import glob

from setuptools import Extension, find_packages, setup

# MXNet exports what it has of the C++ library's templates, made by another compiler, and a process with Horovod sees
# it: what is compiled here is to call its own.
OWN = '-Wl,-Bsymbolic'

# scripts/install has a compiler, and ends where that fails; else a library of older sources might stay.
OPTIONAL = not os.environ.get('MXHYBRID_REQUIRE_COMPILED')

# Called by ctypes, so that it needs nothing of Python's; where it cannot be compiled, rows travel by ps-lite.
LANE = Extension('mxhybrid.lane._lane', sorted(glob('mxhybrid/lane/src/*.cc')), depends=glob('mxhybrid/lane/src/*.h'),
                 language='c++', optional=OPTIONAL, extra_link_args=['-pthread', '-fopenmp', OWN],
                 # Not contracted: sums and updates are to be the same bits on every machine, and MXNet's.
                 extra_compile_args=['-std=c++17', '-O3', '-ffp-contract=off', '-Wall', '-Wextra', '-pthread',
                                     '-fopenmp'])  # with MXNet's own threads

# The planner's simulator and the builder of its tasks; where they cannot be compiled, there is no planner.
SIMULATE = Extension('mxhybrid.planner.simulator._simulate', sorted(glob('mxhybrid/planner/simulator/src/*.cc')),
                     depends=glob('mxhybrid/planner/simulator/src/*.h'), language='c++', optional=OPTIONAL,
                     extra_link_args=[OWN],
                     # Not contracted: the same bits as the Python of tests/oracles.
                     extra_compile_args=['-std=c++17', '-O3', '-ffp-contract=off', '-Wall', '-Wextra'])

setup(
    name='mxhybrid',
    version='0.1.0',
    description='KVStore for Apache MXNet: row_sparse parameters on servers, dense ones summed among workers',
    license='Apache-2.0',
    packages=find_packages(include=['mxhybrid*']),
    package_data={'mxhybrid.lane': ['src/*'], 'mxhybrid.planner.simulator': ['src/*']},
    ext_modules=[LANE, SIMULATE],
    entry_points={'console_scripts': ['mxhybrid = mxhybrid.commands.main:main']},
    python_requires='>=3.8,<3.12',
    # mxnet comes as mxnet or as any mxnet-cu* build, and horovod has to be compiled for the one that is there
    # (see scripts/install): neither can be a requirement here.
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
