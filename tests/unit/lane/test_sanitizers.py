"""The compiled part under the compiler's sanitizers: addresses, undefined behaviour, races; and without a warning."""
import pathlib
import subprocess

import pytest

import mxhybrid

SOURCES = pathlib.Path(mxhybrid.__file__).parent / 'lane' / 'src'
STRESS = pathlib.Path(__file__).parent / 'stress.cc'
#: Of each sanitizer: what it is told, and what has to come before the program.
SANITIZERS = {
    'address,undefined': ({'ASAN_OPTIONS': 'detect_stack_use_after_return=1', 'UBSAN_OPTIONS': 'halt_on_error=1'}, []),
    # It has to know where memory lies.
    'thread': ({'TSAN_OPTIONS': 'halt_on_error=1'}, ['setarch', '--addr-no-randomize']),
}


@pytest.mark.timeout(360)  # the compiler alone takes 15 s, and more than a minute beside other tests
@pytest.mark.parametrize('sanitizer', SANITIZERS)
def test_random_jobs_are_clean(tmp_path, sanitizer):
    program = tmp_path / 'stress'
    sources = [path for path in sorted(SOURCES.glob('*.cc')) if path.name != 'api.cc']
    subprocess.run(['g++', '-std=c++17', '-O1', '-g', '-fno-omit-frame-pointer', '-ffp-contract=off', '-pthread',
                    '-Wall', '-Wextra', '-Werror', '-fsanitize=' + sanitizer, '-I', SOURCES, STRESS, *sources,
                    '-o', program], check=True, timeout=240)
    options, before = SANITIZERS[sanitizer]
    ended = subprocess.run([*before, program], env=options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           timeout=120)
    assert ended.returncode == 0 and ended.stdout == 'all rows are right\n', ended.stdout
