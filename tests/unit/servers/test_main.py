"""Commands that MXNet passes to a server that mxhybrid started."""
import os
import pickle
import subprocess
import sys

import pytest

from mxhybrid.messaging.sealed import Opener, Sealer, new_secret
from mxhybrid.servers.handler import Handler
from mxhybrid.servers.main import Controller
from mxhybrid.servers.pickled import pickled

pytestmark = pytest.mark.both_pythons

SECRET = new_secret()


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return open, (self._path, 'w')


@pytest.fixture
def server():
    """A controller, its handler, the handlers that it installed, and a sealer of its commands."""
    handler, installed = Handler(), []
    return Controller(Opener(SECRET), handler, installed.append), handler, installed, Sealer(SECRET)


def table(name, rows):
    """Arguments of a command."""
    return {'table': name, 'keys': [5], 'rows': [rows], 'width': 4}


def test_sealed_commands_install_the_handler_once(server):
    controller, handler, installed, sealer = server
    controller(0, sealer.seal('table', table('größe', 3)).encode(), None)
    controller(0, sealer.seal('mode', {'keys': [5], 'mode': 'assign'}).encode(), None)
    assert installed == [handler]
    part = installed[0]._partitions[5]
    assert (part.table, part.shape, part.mode) == ('größe', (3, 4), 'assign')


def test_other_messages_change_nothing(server, tmp_path, caplog):
    controller, handler, installed, sealer = server
    evil = tmp_path / 'evil'
    strange = [pickle.dumps(Evil(evil), 0), pickled('mode', {'keys': [5], 'mode': 'assign'}).encode(), b'', b'\xff',
               Sealer(new_secret()).seal('mode', {'keys': [5], 'mode': 'assign'}).encode()]
    for body in strange:
        controller(0, body, None)
    assert not installed and not handler._partitions
    first = sealer.seal('table', table('w', 3)).encode()
    controller(0, first, None)
    controller(0, sealer.seal('mode', {'keys': [5], 'mode': 'assign'}).encode(), None)
    for body in strange + [first, first[:-1], first.replace(b'3', b'4')]:
        controller(0, body, None)
    part = installed[0]._partitions[5]
    assert (part.table, part.shape, part.mode) == ('w', (3, 4), 'assign')
    assert not evil.exists()
    assert 'ignoring a command that is not from worker 0 of this job: it is not sealed' in caplog.text
    assert '(8 so far)' in caplog.text
    assert SECRET not in caplog.text


def test_the_pickle_would_do_harm_where_pickles_are_loaded(tmp_path):
    pickle.loads(pickle.dumps(Evil(tmp_path / 'evil'), 0)).close()
    assert (tmp_path / 'evil').exists()


@pytest.mark.parametrize('command, install, text', [
    ("'mode', {'keys': [3], 'mode': 'assign'}", 'print', 'command mode failed'),
    ("'dance', {}", 'print', 'command dance failed'),
    ("'mode', {'keys': [], 'mode': 'assign'}", 'int', 'installation as optimizer failed'),
])
def test_an_error_in_a_sealed_command_ends_the_server(command, install, text):
    program = ('import mxnet\nfrom mxhybrid.servers.handler import Handler\n'
               'from mxhybrid.servers.main import Controller\n'
               'from mxhybrid.messaging.sealed import Opener, Sealer\n'
               'Controller(Opener("x"), Handler(), %s)(0, Sealer("x").seal(%s).encode(), None)\nprint("alive")'
               % (install, command))
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=50, env=env)
    assert done.returncode == 1 and 'alive' not in done.stdout
    assert '[mxhybrid server] ' + text in done.stderr and 'Error' in done.stderr.splitlines()[-1]
