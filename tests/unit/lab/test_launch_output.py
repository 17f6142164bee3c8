"""Lines of workers as scripts/launch.py writes them: the rank stands before each of them."""
import io
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

from mxhybrid.job.launch_py import say_rank

LAUNCH = runpy.run_path(str(Path(__file__).resolve().parents[3] / 'scripts' / 'launch.py'))


def relayed(*pieces):
    """Return the lines of a worker that writes these pieces."""
    reader, writer = os.pipe()
    for piece in pieces:
        os.write(writer, piece)
    os.close(writer)
    written = io.BytesIO()
    LAUNCH['relay'](os.fdopen(reader, 'rb'), SimpleNamespace(buffer=written), 'task 3', 'stdout')
    return written.getvalue()


def test_each_line_has_a_label():
    assert relayed(b'a\n\nb') == b'[task 3]<stdout>:a\n[task 3]<stdout>:\n[task 3]<stdout>:b\n'
    assert relayed(b'1%\r2%\r\n', b'\xff\xc3\xa4\n') == (
        b'[task 3]<stdout>:1%\r[task 3]<stdout>:2%\r\n[task 3]<stdout>:\xff\xc3\xa4\n')


def test_a_worker_says_its_rank_where_launch_py_reads(capfd):
    say_rank(12)  # both streams are files here
    reader, writer = os.pipe()
    output = os.dup(1)
    os.dup2(writer, 1)
    say_rank(12)
    os.dup2(output, 1)
    os.close(writer)
    os.close(output)
    with os.fdopen(reader, 'rb') as pipe:
        line = pipe.read()
    assert relayed(b'early\nunfinished', line, b'late\n') == (
        b'[task 3]<stdout>:early\n[12]<stdout>:unfinished\n[12]<stdout>:late\n')
    assert capfd.readouterr() == ('', '')
