"""The compiled part under the compiler's sanitizers: addresses, undefined behaviour, races; and without a warning.

A program that explores how threads may interleave takes the thread sanitizer's place in one test.
"""
import functools
import pathlib
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import mxhybrid

from ...helpers.turns import slow

SOURCES = pathlib.Path(mxhybrid.__file__).parent / 'lane' / 'src'
HERE = pathlib.Path(__file__).parent
#: Of each sanitizer: what it is told, and what has to come before the program.
SANITIZERS = {
    'address,undefined': ({'ASAN_OPTIONS': 'detect_stack_use_after_return=1', 'UBSAN_OPTIONS': 'halt_on_error=1'}, []),
    # It has to know where memory lies.
    'thread': ({'TSAN_OPTIONS': 'halt_on_error=1'}, ['setarch', '--addr-no-randomize']),
}
#: How each is compiled.  A thread that nobody wakes sleeps for longer than the test; counters wrap after a few rounds.
FLAGS = {
    'address,undefined': ['-fsanitize=address,undefined', '-DLANE_FALLBACK_MS=3600000'],
    'thread': ['-fsanitize=thread', '-DLANE_FALLBACK_MS=3600000', '-DLANE_FIRST_COUNT=4294967288u'],
}
#: Of the program that takes the thread sanitizer's place: it is not to call the functions that it defines.
EXPLORER_FLAGS = ['-fno-builtin', '-fno-tree-loop-distribute-patterns']


def compiled(source, flags, folder):
    """Compile a file of C++, without a warning; the object file."""
    made = folder / (source.stem + '.o')
    subprocess.run(['g++', '-std=c++17', '-O1', '-g1', '-fno-omit-frame-pointer', '-ffp-contract=off', '-pthread',
                    '-Wall', '-Wextra', '-Werror', *flags, '-I', SOURCES, '-c', source, '-o', made],
                   check=True, timeout=240)
    return made


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
    """Makes the compiled part with a sanitizer, once for all tests: its files."""
    @functools.lru_cache(maxsize=None)
    def make(sanitizer):
        folder = tmp_path_factory.mktemp('parts')
        sources = [path for path in sorted(SOURCES.glob('*.cc')) if path.name not in ('api.cc', 'mapping.cc')]
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda source: compiled(source, FLAGS[sanitizer], folder), sources))
    return make


def linked(objects, folder, *flags):
    """Link a program."""
    program = folder / 'program'
    subprocess.run(['g++', '-pthread', *objects, *flags, '-o', program], check=True, timeout=120)
    return program


def output_of(command, **arguments):
    """Run a program, which ends well; what it says."""
    ended = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           timeout=240, **arguments)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def output_with(source, parts, sanitizer, folder, *arguments):
    """Run a program that works with the compiled part, under a sanitizer; what it says."""
    objects = [compiled(HERE / name, FLAGS[sanitizer], folder) for name in (source, 'map_once.cc')]
    program = linked(objects + parts(sanitizer), folder, '-fsanitize=' + sanitizer)
    options, before = SANITIZERS[sanitizer]
    return output_of([*before, program, *arguments], env=options)


@pytest.mark.timeout(600)  # the compiler alone takes 15 s, and more than a minute beside other tests
@pytest.mark.parametrize('sanitizer, way', [('address,undefined', 'processes'), ('thread', 'threads'),
                                            slow('address,undefined', 'threads')])
@pytest.mark.parametrize('steps', [10, slow(40)])
def test_random_jobs_are_clean(tmp_path, parts, sanitizer, way, steps):
    assert output_with('stress.cc', parts, sanitizer, tmp_path, steps, way) == 'all rows are right\n'


@pytest.mark.timeout(600)
@pytest.mark.parametrize('more', [0, slow(1)])
def test_orders_of_memory_are_enough_however_threads_interleave(tmp_path, parts, more):
    """Mutants with weaker orders fail."""
    explorer = [compiled(path, EXPLORER_FLAGS, tmp_path) for path in sorted(HERE.glob('explorer*.cc'))]
    program = linked([compiled(HERE / 'orderings.cc', FLAGS['thread'], tmp_path), *explorer, *parts('thread')],
                     tmp_path, '-ldl')
    output_of([program, more])


@pytest.mark.timeout(600)
@pytest.mark.parametrize('programs', [3000, slow(30000)])
def test_messages_of_a_host_that_lies_do_no_harm(tmp_path, parts, programs):
    said = output_with('fuzz_messages.cc', parts, 'address,undefined', tmp_path, programs)
    programs, refused = map(int, re.match(r'(\d+) programs did no harm, (\d+) were refused\n', said).groups())
    # Some go through, and were not to be refused; others are.
    assert 0.3 * programs < refused < 0.9 * programs


@pytest.mark.timeout(600)
def test_arrays_that_are_cut_short_or_changed_do_no_harm(tmp_path, parts):
    assert output_with('fuzz_row_arrays.cc', parts, 'address,undefined', tmp_path) == 'all ids and rows are right\n'
