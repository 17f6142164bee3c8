"""Processes that scripts/launch.py and lab.jobs start: their output, their ports, and the cause of the end."""
import contextlib
import io
import os
import queue
import runpy
import signal
import socket
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab.jobs import indented

from mxhybrid.job.launch_py import say_rank

pytestmark = pytest.mark.both_pythons

LAUNCH = runpy.run_path(str(Path(__file__).resolve().parents[3] / 'scripts' / 'launch.py'))


def task(status, over_ssh=False):
    return types.SimpleNamespace(status=status, over_ssh=over_ssh)


def cause(*tasks):
    """Return the number of that task, given tasks in the order of their ends."""
    job = LAUNCH['Job'].__new__(LAUNCH['Job'])
    job._ends = queue.Queue()
    for one in tasks[1:]:
        job._ends.put(one)
    return tasks.index(job._cause(tasks[0]))


@pytest.mark.parametrize('tasks, which', [
    ([task(1), task(2)], 0),
    ([task(-signal.SIGTERM), task(0), task(3)], 2),
    ([task(143, True), task(255, True), task(1, True)], 2),
    ([task(143), task(1)], 1),
    ([task(143)], 0),
    ([task(255), task(1)], 0),
    ([task(255, True)], 0)],
    ids=['itself', 'an echo', 'echoes over ssh', 'told to end', 'told to end, alone', 'a status of 255', 'ssh alone'])
def test_a_process_ended_by_another_is_no_cause(tasks, which):
    assert cause(*tasks) == which


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


def port_of(reservation):
    return reservation.getsockname()[1]


@pytest.fixture
def port_in_use():
    with LAUNCH['reserve_port'](LAUNCH['ANY_PORT']) as reservation:
        yield port_of(reservation)


def test_a_port_that_another_job_holds_is_left_out(port_in_use):
    with LAUNCH['reserve_port']([port_in_use, *LAUNCH['ANY_PORT']]) as reservation:
        assert port_of(reservation) not in (0, port_in_use)


def test_a_range_without_a_free_port_is_refused(port_in_use, caplog):
    with pytest.raises(SystemExit) as caught:
        LAUNCH['reserve_port']([port_in_use])
    assert caught.value.code == 2
    assert 'all ports from %d to %d are in use' % (port_in_use, port_in_use) in caplog.text


def test_the_scheduler_can_listen_on_the_reserved_port():
    with LAUNCH['reserve_port'](LAUNCH['ANY_PORT']) as reservation:
        with socket.create_server(('127.0.0.1', port_of(reservation))):  # sets SO_REUSEADDR, as ps-lite does
            socket.create_connection(('127.0.0.1', port_of(reservation)), timeout=10).close()


def test_jobs_hold_different_ports_of_one_range():
    with contextlib.ExitStack() as stack:
        reservations = [stack.enter_context(LAUNCH['reserve_port'](LAUNCH['TRACKER_PORTS'])) for _ in range(3)]
        assert len({port_of(reservation) for reservation in reservations}) == 3


def test_the_last_lines_are_shown():
    assert indented('') == '  (it said nothing)'
    assert indented('first\nsecond\nthird\n', 2) == '  | second\n  | third'


def test_the_beginning_of_a_crash_is_shown():
    crash = ['[0]<stderr>:Fatal Python error: Segmentation fault', '', '[0]<stderr>:Current thread'] + ['frame'] * 60
    shown = indented('\n'.join(['before'] + crash + ['after', 'end']), 2).split('\n')
    assert shown[:3] == ['  | ' + line for line in crash[:3]]
    assert shown[-3:] == ['  | ...', '  | after', '  | end'] and len(shown) == 33
    short = indented('\n'.join(['before'] + crash), 62).split('\n')
    assert short[:2] == ['  | ' + crash[0], '  | ...'] and len(short) == 64
