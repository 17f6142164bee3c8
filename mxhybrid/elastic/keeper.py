"""The keeper of a host: holds the commits of an elastic job in memory, and connects the workers with the launcher.

The launcher starts a keeper on each host, here or by ssh, and talks to it by its standard input and output, in lines of
JSON.  A keeper ends when its input ends, or when the launcher is silent for :data:`SILENCE_S`; so none is left behind.
Workers of the host connect by a local socket (:mod:`mxhybrid.messaging.keeper_channel`).

====================  =====================================================================================
from the launcher     meaning
====================  =====================================================================================
``start``             name of the socket, secret of the job, host, network interface
``generation``        number, and address of the next host's keeper (None for a single host)
``pin``, ``target``   for the workers, see :mod:`mxhybrid.elastic.state`
``ping``              the launcher lives
``ask``               answer ``here``: does the host live, too?
====================  =====================================================================================

Messages of workers go to the launcher as they are; after a commit the keeper adds its bytes, and copies it to the next
host's keeper.
"""
import json
import os
import queue
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Dict, List, Optional

from ..base.errors import JobError
from ..checkpoint import folder
from ..messaging.addresses import interface_address
from ..messaging.local_sockets import Connection, Left, Listener
from .commit_copies import CopyError, receive_commits, send_commits
from .commit_folder import make_folder, size_of

#: Seconds of silence of the launcher after which a keeper ends.
SILENCE_S = 20.0


class Keeper:
    """The state of this process: the folder, the generation and the connections of its workers."""

    def __init__(self, start: Dict[str, Any], path: str):
        self._path, self._secret, self._host = path, start['secret'], start['host']
        self._generation = -1
        self._next: Optional[List[Any]] = None
        self._is_pinned = False
        self._newest = ''
        self._to_copy: 'queue.SimpleQueue[int]' = queue.SimpleQueue()
        self._output = threading.RLock()  # the handler of SIGTERM tells, too
        #: Connections of workers, with their generation.
        self._workers: Dict[Connection, int] = {}
        #: Connections of workers that stand by, with the generation for which they wait.
        self._waiting: Dict[Connection, int] = {}
        self._selector = selectors.DefaultSelector()
        listener = Listener(start['socket'])
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        address = interface_address(start['interface']) if start['interface'] else socket.gethostbyname(self._host)
        server = socket.create_server((address, 0))
        self._selector.register(server, selectors.EVENT_READ, lambda: self._receive(server))
        threading.Thread(target=self._copy, daemon=True).start()
        self.tell('ready', address=list(server.getsockname()[:2]))

    def tell(self, kind: str, **content: Any) -> None:
        """Send a message to the launcher, with the commits that this keeper has."""
        line = json.dumps(dict(content, kind=kind, held=folder.names(self._path), generation=self._generation))
        with self._output:
            os.write(1, line.encode() + b'\n')

    def serve(self) -> None:
        """Answer until the launcher ends, or is silent."""
        self._selector.register(0, selectors.EVENT_READ, self._read)
        self._data, self._heard = b'', time.monotonic()
        self._is_open = True
        while self._is_open and time.monotonic() < self._heard + SILENCE_S:
            for key, _ in self._selector.select(1.0):
                key.data()

    # ---------------------------------------------------------------------------------------------- the launcher

    def _read(self) -> None:
        data = os.read(0, 1 << 16)
        self._is_open = bool(data)
        self._heard = time.monotonic()
        *lines, self._data = (self._data + data).split(b'\n')
        for line in lines:
            message = json.loads(line.decode())
            kind = message.pop('kind')
            if kind == 'generation':
                self._begin(**message)
            elif kind == 'ask':
                self.tell('here')
            elif kind != 'ping':
                self._is_pinned = kind == 'pin'
                for connection, generation in list(self._workers.items()):
                    if generation == self._generation:
                        connection.tell([kind, message['value']])

    def _begin(self, number: int, next_address: Optional[List[Any]]) -> None:
        """Begin a generation: workers of an earlier one, which a host that was cut off may still have, are ended."""
        self._generation, self._is_pinned = number, False
        self._newest = ''.join(folder.names(self._path)[:1])
        self._next = next_address
        for connection, generation in list(self._workers.items()):
            if generation not in (-1, number):
                if connection.peer > 0:
                    with suppress(ProcessLookupError):
                        os.kill(connection.peer, signal.SIGKILL)
                self._drop(connection)
        for connection, generation in list(self._waiting.items()):
            if generation <= number:
                del self._waiting[connection]
                self._answer(connection, generation)
        self._to_copy.put(number)
        self.tell('begun')

    # ---------------------------------------------------------------------------------------------- workers

    def _accept(self, listener: Listener) -> None:
        connection = listener.accept_one()
        if connection is not None:
            self._workers[connection] = -1
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(connection))

    def _drop(self, connection: Connection) -> None:
        self._selector.unregister(connection)
        self._waiting.pop(connection, None)
        del self._workers[connection]
        connection.close()

    def _hear(self, connection: Connection) -> None:
        if connection not in self._workers:
            return
        try:
            message, _ = connection.receive()
            self._handle(connection, message)
        except (OSError, Left, JobError, ValueError, IndexError, TypeError):
            self._drop(connection)

    def _handle(self, connection: Connection, message: List[Any]) -> None:
        if message[0] == 'hello':
            generation = int(message[1])
            if generation > self._generation and message[2] == 'standby':
                self._waiting[connection] = generation
                self.tell('stands_by')
                return
            self._answer(connection, generation)
            if self._is_pinned and message[2] == 'state':
                connection.tell(['pin', None])
        elif self._workers[connection] == self._generation >= 0:
            names = folder.names(self._path)
            if message[0] == 'checkpoint' and names and names[0] != self._newest:  # not one on the disk
                self._newest = names[0]
                self.tell('commit', step=message[1], size_bytes=size_of(os.path.join(self._path, names[0])))
                self._to_copy.put(self._generation)
            else:
                self.tell(message[0], value=message[1])

    def _answer(self, connection: Connection, generation: int) -> None:
        """Answer the first message of a worker."""
        if generation == self._generation:
            self._workers[connection] = generation
            connection.tell(['folder', self._path])
        else:
            connection.tell(['refused', 'generation %d of the job has ended, and generation %d runs: this process is '
                                        'too late' % (generation, self._generation)])

    # ---------------------------------------------------------------------------------------------- other hosts

    def _copy(self) -> None:
        while True:
            generation = self._to_copy.get()
            while not self._to_copy.empty():
                generation = self._to_copy.get()
            if generation != self._generation or self._next is None or not folder.names(self._path):
                continue
            began = time.monotonic()
            try:
                sent = send_commits(self._path, self._next, self._secret, generation)
                self.tell('copied', size_bytes=sent, seconds=time.monotonic() - began)
            except CopyError as error:
                self.tell('not_copied', value=str(error))

    def _receive(self, server: socket.socket) -> None:
        sock, _ = server.accept()

        def receive(generation: int) -> None:
            if receive_commits(sock, self._path, self._secret, generation):
                self.tell('received')

        threading.Thread(target=receive, args=[self._generation], daemon=True).start()


def main() -> int:
    """Run the keeper of this host; the exit status is 0."""
    path, has_name = make_folder()  # before there are threads
    try:
        if sys.argv[1:] == ['--check']:  # of the doctor
            status = os.statvfs(path)
            os.write(1, json.dumps({'has_name': has_name,
                                    'free_bytes': status.f_bavail * status.f_frsize}).encode())
            return 0
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        line = sys.stdin.buffer.raw.readline()  # type: ignore  # nothing is buffered: `serve` reads the rest
        if line:
            keeper = Keeper(json.loads(line.decode()), path)
            # The host ends: the launcher arranges that its workers leave.
            signal.signal(signal.SIGTERM, lambda number, frame: keeper.tell('host_leaving'))
            keeper.serve()
    except BrokenPipeError:  # the launcher has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finally:
        if has_name:
            shutil.rmtree(path, ignore_errors=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
