"""Commands that MXNet passes to a server that mxhybrid started, and errors that end a server of either kind."""
import pickle
import subprocess

import pytest

from mxhybrid.messaging.sealed import Opener, Sealer, new_secret
from mxhybrid.servers.handler import Handler
from mxhybrid.servers.main import Controller
from mxhybrid.servers.pickled import pickled

from ...helpers.programs import run_program

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


#: Makes a call in a server that MXNet started, which gets pickled commands, or in one that mxhybrid started.
PROGRAM = """
import pickle
import mxnet as mx
from mxhybrid.messaging.sealed import Opener, Sealer
from mxhybrid.servers.handler import Handler
from mxhybrid.servers.main import Controller
from mxhybrid.servers.pickled import pickled

def execute_pickled(*command):
    pickle.loads(pickled(*command).encode())

def execute_sealed(install, *command):
    Controller(Opener('x'), Handler(), install)(0, Sealer('x').seal(*command).encode(), None)

%s
print('alive')
"""


@pytest.mark.parametrize('call, text', [
    ('Handler().update_multi_precision(9, mx.nd.zeros(1), mx.nd.zeros(1), None)', 'update of key 9 failed'),
    ("execute_pickled('mode', {'keys': [3], 'mode': 'assign'})", 'command mode failed'),
    ("execute_pickled('dance', {})", 'command dance failed'),
    ("execute_sealed(print, 'mode', {'keys': [3], 'mode': 'assign'})", 'command mode failed'),
    ("execute_sealed(print, 'dance', {})", 'command dance failed'),
    ("execute_sealed(int, 'mode', {'keys': [], 'mode': 'assign'})", 'installation as optimizer failed')])
def test_an_error_ends_the_server_and_is_shown(call, text):
    done = run_program(PROGRAM % call, check=False, stderr=subprocess.PIPE)
    assert done.returncode == 1 and 'alive' not in done.stdout
    assert '[mxhybrid server] ' + text in done.stderr and 'Error' in done.stderr.splitlines()[-1]
