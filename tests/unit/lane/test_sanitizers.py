"""The compiled part under the compiler's sanitizers: addresses, undefined behaviour, races; and without a warning."""
import pathlib
import re
import subprocess

import pytest

import mxhybrid

SOURCES = pathlib.Path(mxhybrid.__file__).parent / 'lane' / 'src'
HERE = pathlib.Path(__file__).parent
#: Of each sanitizer: what it is told, and what has to come before the program.
SANITIZERS = {
    'address,undefined': ({'ASAN_OPTIONS': 'detect_stack_use_after_return=1', 'UBSAN_OPTIONS': 'halt_on_error=1'}, []),
    # It has to know where memory lies.
    'thread': ({'TSAN_OPTIONS': 'halt_on_error=1'}, ['setarch', '--addr-no-randomize']),
}


def output_of(source, sanitizer, program):
    """What a program says that is compiled together with the compiled part, and ends well."""
    sources = [path for path in sorted(SOURCES.glob('*.cc')) if path.name != 'api.cc']
    subprocess.run(['g++', '-std=c++17', '-O1', '-g', '-fno-omit-frame-pointer', '-ffp-contract=off', '-pthread',
                    '-Wall', '-Wextra', '-Werror', '-fsanitize=' + sanitizer, '-I', SOURCES, HERE / source, *sources,
                    '-o', program], check=True, timeout=240)
    options, before = SANITIZERS[sanitizer]
    ended = subprocess.run([*before, program], env=options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           timeout=120)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.timeout(360)  # the compiler alone takes 15 s, and more than a minute beside other tests
@pytest.mark.parametrize('sanitizer', SANITIZERS)
def test_random_jobs_are_clean(tmp_path, sanitizer):
    assert output_of('stress.cc', sanitizer, tmp_path / 'stress') == 'all rows are right\n'


@pytest.mark.timeout(360)
def test_messages_of_a_host_that_lies_do_no_harm(tmp_path):
    said = output_of('fuzz_messages.cc', 'address,undefined', tmp_path / 'fuzz_messages')
    programs, refused = map(int, re.match(r'(\d+) programs did no harm, (\d+) were refused\n', said).groups())
    # Some go through, and were not to be refused; others are.
    assert 0.3 * programs < refused < 0.9 * programs
