"""The compiled part under the compiler's sanitizers: addresses, undefined behaviour, races; and without a warning.

A program that explores how threads may interleave takes the thread sanitizer's place in one test.

Object files are kept in ~/.cache/mxhybrid/objects (XDG_CACHE_HOME), by compiler, flags, source and headers.
"""
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
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


KEPT = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'mxhybrid' / 'objects'
#: The number of object files that are kept.
MOST_KEPT = 200


@functools.lru_cache(maxsize=None)
def compiler_and_headers():
    """A digest of the compiler's version and of all headers: an object file depends on them."""
    digest = hashlib.sha256(subprocess.run(['g++', '--version'], check=True, stdout=subprocess.PIPE).stdout)
    for header in sorted([*SOURCES.glob('*.h'), *HERE.glob('*.h')]):
        digest.update(header.name.encode() + header.read_bytes())
    return digest.digest()


def compiled(source, flags, folder):
    """Compile a file of C++, without a warning, unless its object file is kept; return the path of a copy."""
    words = ['g++', '-std=c++17', '-O1', '-g1', '-fno-omit-frame-pointer', '-ffp-contract=off', '-pthread', '-Wall',
             '-Wextra', '-Werror', *flags]
    key = hashlib.sha256(compiler_and_headers() + repr(words).encode() + source.read_bytes()).hexdigest()[:24]
    kept, copy = KEPT / ('%s-%s.o' % (source.stem, key)), folder / (source.stem + '.o')
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=str(KEPT)) as scratch:
            made = pathlib.Path(scratch) / 'made.o'
            subprocess.run([*words, '-I', SOURCES, '-c', source, '-o', made], check=True, timeout=240)
            made.replace(kept)
    kept.touch()
    shutil.copy(str(kept), str(copy))
    return copy


@pytest.fixture(scope='module', autouse=True)
def few_kept():
    """Forget object files that have not been used for longest."""
    yield
    for path in sorted(KEPT.glob('*.o'), key=lambda path: -path.stat().st_mtime)[MOST_KEPT:]:
        path.unlink()


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
