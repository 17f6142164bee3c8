"""Folders of commits in memory, and their copies to another keeper."""
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from mxhybrid.checkpoint import folder
from mxhybrid.elastic import commit_folder
from mxhybrid.elastic.commit_copies import CopyError, receive_commits, send_commits

from ...helpers.checkpoints import write


def copy(source, target, secrets=('a', 'a'), generations=(3, 3)):
    """Copy the commits of a folder to another one; return the bytes, and whether all came."""
    server = socket.create_server(('127.0.0.1', 0))
    results = []

    def receive():
        sock, _ = server.accept()
        results.append(receive_commits(sock, str(target), secrets[1], generations[1]))

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        return send_commits(str(source), list(server.getsockname()), secrets[0], generations[0]), results
    finally:
        thread.join(30)
        server.close()


@pytest.fixture
def folders(tmp_path):
    """A folder with a commit, and an empty one."""
    write(tmp_path / 'a', 5)
    (tmp_path / 'b').mkdir()
    return tmp_path / 'a', tmp_path / 'b'


def contents(path):
    """Return the bytes of all files below a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob('*') if file.is_file()}


def test_a_copy_has_new_commits_and_no_old_ones(folders):
    source, target = folders
    sent, results = copy(source, target)
    assert contents(source) == contents(target) and results == [True]
    assert sent == commit_folder.size_of(str(source)) == sum(map(len, contents(source).values()))
    assert copy(source, target)[0] == 0
    write(source, 10, keep=1)
    assert copy(source, target)[0] == commit_folder.size_of(str(source))
    assert contents(source) == contents(target) and folder.names(str(target)) == ['00000002-step-10']


@pytest.mark.parametrize('secrets, generations, problem', [
    (('a', 'b'), (3, 3), 'closed the connection'), (('a', 'a'), (2, 3), 'generation 2 has ended: generation 3 runs')])
def test_strangers_and_old_generations_are_refused(folders, secrets, generations, problem):
    with pytest.raises(CopyError, match=problem):
        copy(*folders, secrets, generations)
    assert os.listdir(str(folders[1])) == []


def test_a_full_memory_leaves_the_commits_that_were_there(folders, monkeypatch):
    source, target = folders
    copy(source, target)
    write(source, 10)
    kept = contents(target)
    os.mkdir(str(target / '.receiving'))
    monkeypatch.setattr('mxhybrid.elastic.commit_copies._receive_file', full)
    with pytest.raises(CopyError, match='No space left'):
        copy(source, target)
    assert contents(target) == kept and os.listdir(str(target)) == ['00000001-step-5']


def full(*arguments):
    """Fail as a write to a full file system does."""
    raise OSError(28, 'No space left on device')


PROGRAM = """
import os, sys
from mxhybrid.base import program
program.is_command = lambda: True  # no MXNet
from mxhybrid.elastic import commit_folder
if sys.argv[1] == 'named':
    def refuse(target):
        raise OSError('not permitted')
    commit_folder._mount = refuse
path, has_name = commit_folder.make_folder()
open(os.path.join(path, 'file'), 'w').write('in memory')
print(path, has_name, flush=True)
sys.stdin.read()
"""


def keeper(kind):
    """Start a process that makes a folder; return it, the path and whether it has a name."""
    process = subprocess.Popen([sys.executable, '-c', PROGRAM, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    path, has_name = process.stdout.readline().decode().split()
    return process, path, has_name == 'True'


@pytest.mark.parametrize('kind', ['nameless', 'named'])
def test_nothing_is_left_of_a_killed_keeper(kind):
    process, path, has_name = keeper(kind)
    assert has_name == (kind == 'named')
    with open(os.path.join(path, 'file')) as file:
        assert file.read() == 'in memory'
    other, other_path, _ = keeper(kind)  # leaves the folder of the first one, which lives
    assert os.path.exists(os.path.join(path, 'file')) and other_path != path
    for each in (process, other):
        each.kill()
        each.communicate()
    last, _, _ = keeper(kind)
    last.communicate()
    assert not os.path.exists(path) and not os.path.exists(other_path)
    if has_name:
        commit_folder._remove_left('/dev/shm')


def test_a_keeper_tells_where_it_holds_commits():
    output = subprocess.run([sys.executable, '-m', 'mxhybrid.elastic.keeper', '--check'], stdout=subprocess.PIPE,
                            check=True, timeout=30).stdout
    checked = json.loads(output.decode())
    assert checked['free_bytes'] > 0 and checked['has_name'] is False
