"""Hostile messages by libFuzzer: builds and runs tests/unit/lane/fuzz_messages.cc."""
import shutil
import subprocess
import sys
from pathlib import Path

from ..launchers import REPOSITORY

_ROOMS = [REPOSITORY / 'mxhybrid' / room / 'src' for room in ('kernels', 'row_store', 'lane')]
_TARGET = REPOSITORY / 'tests' / 'unit' / 'lane' / 'fuzz_messages.cc'
#: Seconds and MB that an input may take.
_INPUT_S, _INPUT_MB = 10, 1024


def run(minutes: float, folder: Path) -> int:
    """Fuzz messages for some minutes; keep the corpus and harmful messages in `folder`. Return 1 if any did harm."""
    if shutil.which('clang++') is None:
        sys.exit('scripts/fuzz --messages needs clang++: apt-get install clang')
    corpus = folder / 'messages'
    corpus.mkdir(parents=True, exist_ok=True)
    program = folder / 'fuzz_messages'
    sources = [path for room in _ROOMS for path in sorted(room.rglob('*.cc')) if not path.name.endswith('api.cc')]
    subprocess.run(['clang++', '-std=c++17', '-O1', '-g', '-fno-omit-frame-pointer', '-ffp-contract=off', '-pthread',
                    '-DWITH_LIBFUZZER', '-fsanitize=fuzzer,address,undefined', '-fno-sanitize-recover=undefined',
                    *('-I%s' % room for room in _ROOMS), _TARGET, *sources, '-o', program], check=True)
    ended = subprocess.run([program, corpus, '-max_total_time=%d' % (60 * minutes), '-timeout=%d' % _INPUT_S,
                            '-rss_limit_mb=%d' % _INPUT_MB, '-artifact_prefix=%s/messages-' % folder,
                            '-print_final_stats=1'])
    return int(ended.returncode != 0)
