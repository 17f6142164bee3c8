"""A host whose own name nothing knows: an error before Horovod looks the name up, which crashes it."""
import sys

import pytest
from lab.jobs import start_command
from lab.launchers import job_command

from ..parallel.launchers import BODIES

BODY = BODIES / 'lone_task.py'


def renamed(command):
    """list of str: a command on this host, under a name that does not resolve."""
    return ['unshare', '--uts', 'sh', '-c', 'hostname "$0" && exec "$@"', 'nobody-knows-this-host'] + command


@pytest.mark.parametrize('launcher', ['horovodrun', 'launch.py'])
def test_a_job_on_one_host(launcher):
    with start_command(renamed(job_command(BODY, launcher, 2)), body=BODY) as job:
        result = job.wait(timeout=60).failed("host name 'nobody-knows-this-host' does not resolve", '/etc/hosts')
    assert 'trained' not in result.output and 'Signal' not in result.output


def test_the_doctor():
    command = [sys.executable, '-m', 'mxhybrid', 'doctor', '--timeout', '30']
    with start_command(renamed(command)) as job:
        job.wait(timeout=60).failed("[ ] host name 'nobody-knows-this-host' does not resolve", 'Horovod')
