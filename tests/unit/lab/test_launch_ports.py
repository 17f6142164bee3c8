"""The port that scripts/launch.py holds for the scheduler of a job."""
import contextlib
import runpy
import socket
from pathlib import Path

import pytest

pytestmark = pytest.mark.both_pythons

LAUNCH = runpy.run_path(str(Path(__file__).resolve().parents[3] / 'scripts' / 'launch.py'))


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
