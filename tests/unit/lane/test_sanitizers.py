"""The compiled part under the compiler's sanitizers: addresses, undefined behaviour, races; and without a warning."""
import functools
import pathlib
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import mxhybrid

from ...helpers.turns import slow

pytestmark = pytest.mark.any_python

SOURCES = pathlib.Path(mxhybrid.__file__).parent / 'lane' / 'src'
HERE = pathlib.Path(__file__).parent
#: Of each sanitizer: what it is told, and what has to come before the program.
SANITIZERS = {
    'address,undefined': ({'ASAN_OPTIONS': 'detect_stack_use_after_return=1', 'UBSAN_OPTIONS': 'halt_on_error=1'}, []),
    # It has to know where memory lies.
    'thread': ({'TSAN_OPTIONS': 'halt_on_error=1'}, ['setarch', '--addr-no-randomize']),
}


def compiled(source, sanitizer, folder):
    """A file of C++ as the compiler sees it with a sanitizer."""
    made = folder / (source.stem + '.o')
    subprocess.run(['g++', '-std=c++17', '-O1', '-g1', '-fno-omit-frame-pointer', '-ffp-contract=off', '-pthread',
                    '-Wall', '-Wextra', '-Werror', '-fsanitize=' + sanitizer, '-I', SOURCES, '-c', source, '-o', made],
                   check=True, timeout=240)
    return made


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
    """Makes the compiled part with a sanitizer, once for all tests: its files."""
    @functools.lru_cache(maxsize=None)
    def make(sanitizer):
        folder = tmp_path_factory.mktemp('parts')
        sources = [path for path in sorted(SOURCES.glob('*.cc')) if path.name != 'api.cc']
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda source: compiled(source, sanitizer, folder), sources))
    return make


def output_of(source, parts, sanitizer, folder, *arguments):
    """What a program says that works with the compiled part, and ends well."""
    program = folder / 'program'
    objects = [compiled(HERE / source, sanitizer, folder), *parts(sanitizer)]
    subprocess.run(['g++', '-pthread', '-fsanitize=' + sanitizer, *objects, '-o', program], check=True, timeout=120)
    options, before = SANITIZERS[sanitizer]
    ended = subprocess.run([*before, program, *map(str, arguments)], env=options, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.timeout(600)  # the compiler alone takes 15 s, and more than a minute beside other tests
@pytest.mark.parametrize('sanitizer', SANITIZERS)
@pytest.mark.parametrize('steps', [8, slow(40)])
def test_random_jobs_are_clean(tmp_path, parts, sanitizer, steps):
    assert output_of('stress.cc', parts, sanitizer, tmp_path, steps) == 'all rows are right\n'


@pytest.mark.timeout(600)
@pytest.mark.parametrize('programs', [3000, slow(30000)])
def test_messages_of_a_host_that_lies_do_no_harm(tmp_path, parts, programs):
    said = output_of('fuzz_messages.cc', parts, 'address,undefined', tmp_path, programs)
    programs, refused = map(int, re.match(r'(\d+) programs did no harm, (\d+) were refused\n', said).groups())
    # Some go through, and were not to be refused; others are.
    assert 0.3 * programs < refused < 0.9 * programs


@pytest.mark.timeout(600)
def test_arrays_that_are_cut_short_or_changed_do_no_harm(tmp_path, parts):
    assert output_of('fuzz_row_arrays.cc', parts, 'address,undefined', tmp_path) == 'all ids and rows are right\n'
