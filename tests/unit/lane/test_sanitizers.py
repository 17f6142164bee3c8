"""The compiled library under the address, undefined-behaviour and thread sanitizers, and without compiler warnings.

In one test a model checker takes the place of the thread sanitizer.
"""
import functools
import pathlib
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import mxhybrid

from ...helpers import object_files
from ...helpers.turns import slow

#: The compiler alone takes 15 s, and more than a minute while other tests run.
pytestmark = pytest.mark.timeout(600)

#: The folders of the compiled library.
ROOMS = [pathlib.Path(mxhybrid.__file__).parent / room / 'src' for room in ('kernels', 'row_store', 'lane')]
HERE = pathlib.Path(__file__).parent
#: The environment of each sanitizer, and the command that runs the program.
SANITIZERS = {
    'address,undefined': ({'ASAN_OPTIONS': 'detect_stack_use_after_return=1', 'UBSAN_OPTIONS': 'halt_on_error=1'}, []),
    # The thread sanitizer needs fixed addresses.
    'thread': ({'TSAN_OPTIONS': 'halt_on_error=1'}, ['setarch', '--addr-no-randomize']),
}
#: Compiler flags.  A thread that is not woken sleeps for longer than the test; counters wrap after a few rounds; few
#: keys wait for admission.  With -Og the many checks of the first one are compiled in three quarters of the time, and
#: run as fast.
FLAGS = {
    'address,undefined': ['-Og', '-fsanitize=address,undefined', '-DLANE_FALLBACK_MS=3600000',
                          '-DLANE_MOST_YOUNG_KEYS=100'],
    'thread': ['-O1', '-fsanitize=thread', '-DLANE_FALLBACK_MS=3600000', '-DLANE_FIRST_COUNT=4294967288u'],
}
#: Compiler flags of the model checker, which must not call the functions that it defines.
EXPLORER_FLAGS = ['-O1', '-fno-builtin', '-fno-tree-loop-distribute-patterns']


def compiled(source, flags, folder):
    """Compile a C++ file, unless its object file is in the cache; return the path of a copy."""
    return object_files.compiled(source, ['-g1', '-pthread', *flags], ROOMS, folder)


@pytest.fixture(scope='module', autouse=True)
def limited_cache():
    """Delete the least recently used object files."""
    yield
    object_files.remove_oldest()


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
    """Return a function that compiles the library with a sanitizer, once, and returns the object files."""
    @functools.lru_cache(maxsize=None)
    def make(sanitizer):
        folder = tmp_path_factory.mktemp('parts')
        sources = [path for room in ROOMS for path in sorted(room.rglob('*.cc'))
                   if not path.name.endswith('api.cc') and path.name != 'mapping.cc']
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda source: compiled(source, FLAGS[sanitizer], folder), sources))
    return make


def linked(objects, folder, *flags):
    """Link a program and return its path."""
    program = folder / 'program'
    subprocess.run(['g++', '-pthread', *objects, *flags, '-o', program], check=True, timeout=120)
    return program


def output_of(command, **arguments):
    """Run a program, which must succeed; return its output."""
    result = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           timeout=240, **arguments)
    assert result.returncode == 0, result.stdout
    return result.stdout


def output_with(source, parts, sanitizer, folder, *arguments):
    """Run a program that is linked with the library, under a sanitizer; return its output."""
    objects = [compiled(HERE / name, FLAGS[sanitizer], folder) for name in (source, 'map_once.cc')]
    program = linked(objects + parts(sanitizer), folder, '-fsanitize=' + sanitizer)
    options, before = SANITIZERS[sanitizer]
    return output_of([*before, program, *arguments], env=options)


@pytest.mark.parametrize('sanitizer, mode', [('address,undefined', 'processes'), ('thread', 'threads'),
                                            slow('address,undefined', 'threads')])
@pytest.mark.parametrize('steps', [10, slow(40)])
def test_random_jobs_are_clean(tmp_path, parts, sanitizer, mode, steps):
    output_with('stress.cc', parts, sanitizer, tmp_path, steps, mode)


@pytest.mark.parametrize('more', [0, slow(1)])
def test_memory_orders_suffice_for_all_interleavings(tmp_path, parts, more):
    """The model checker also requires that mutants with weaker orders fail."""
    explorer = [compiled(path, EXPLORER_FLAGS, tmp_path) for path in sorted(HERE.glob('explorer*.cc'))]
    program = linked([compiled(HERE / 'orderings.cc', FLAGS['thread'], tmp_path), *explorer, *parts('thread')],
                     tmp_path, '-ldl')
    output_of([program, more])


@pytest.mark.parametrize('programs', [3000, slow(30000)])
def test_malicious_messages_do_no_harm(tmp_path, parts, programs):
    output = output_with('fuzz_messages.cc', parts, 'address,undefined', tmp_path, programs)
    programs, refused = map(int, re.match(r'(\d+) programs did no harm, (\d+) were refused\n', output).groups())
    # The generator must produce both valid and invalid programs.
    assert 0.3 * programs < refused < 0.9 * programs


@pytest.mark.parametrize('part', ['agent_parts', 'array_streams', 'fuzz_row_arrays', 'network_parts', 'record_log'])
def test_a_part_alone_is_right(tmp_path, parts, part):
    output_with(part + '.cc', parts, 'address,undefined', tmp_path, tmp_path)


@pytest.mark.parametrize('programs', [60, slow(1000)])
def test_random_programs_of_row_stores_are_clean(tmp_path, parts, programs):
    output_with('stress_row_store.cc', parts, 'address,undefined', tmp_path, programs, tmp_path)
