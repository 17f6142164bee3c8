"""Copies the commits of a keeper to the keeper of the next host, over a connection that both have proved to belong to.

The receiving side says which commits it has, and gets the others, each with all of its files.  Then it removes those
that the sending side has no more: both sides have the same commits, of which the newest builds on no missing one.
"""
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List

from ..checkpoint import folder
from ..messaging.handshake import greet, introduce

_PURPOSE, _SENDER, _RECEIVER = 'commits', 0, 1
#: Seconds without a byte after which a copy has failed.
SILENCE_S = 20.0
_HEADER_BYTES = 64 << 20
_RECEIVING = '.receiving'


class CopyError(Exception):
    """A copy was not made; the message says why."""


def _write_line(sock: socket.socket, value: Any) -> None:
    sock.sendall(json.dumps(value).encode() + b'\n')


def _read_line(stream: BinaryIO) -> Any:
    line = stream.readline(_HEADER_BYTES)
    if not line.endswith(b'\n'):
        raise CopyError('the other keeper has closed the connection')
    return json.loads(line.decode())


def _files_of(path: str) -> List[List[Any]]:
    """Return the path inside of the commit, and the bytes, of each of its files."""
    files = filter(Path.is_file, Path(path).rglob('*'))
    return [[str(file.relative_to(path)), file.stat().st_size] for file in files]


def send_commits(path: str, address: List[Any], secret: str, generation: int) -> int:
    """Give the keeper at `address` the commits of the folder `path`; return the bytes that were sent.

    CopyError if it could not be done.
    """
    try:
        with socket.create_connection((address[0], address[1]), SILENCE_S) as sock, folder.kept(path) as names:
            introduce(sock, secret, _PURPOSE, _SENDER, _RECEIVER, time.monotonic() + SILENCE_S)
            sock.settimeout(SILENCE_S)
            stream = sock.makefile('rb')
            there = _read_line(stream)['names']
            new = [name for name in reversed(names) if name not in there]
            listed = [(name, _files_of(os.path.join(path, name))) for name in new]
            _write_line(sock, {'generation': generation, 'names': names, 'new': listed})
            for name, files in listed:
                for file, _ in files:
                    with open(os.path.join(path, name, file), 'rb') as source:
                        sock.sendfile(source)
            sock.shutdown(socket.SHUT_WR)
            problem = _read_line(stream)['problem']
            if problem:
                raise CopyError(problem)
            return sum(size for _, files in listed for _, size in files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CopyError(str(error) or type(error).__name__) from error


def receive_commits(sock: socket.socket, path: str, secret: str, generation: int) -> bool:
    """Receive commits of :func:`send_commits` into the folder `path`; return whether all of them came.

    A sender without the job's secret, or of another generation, is refused.
    """
    with sock:
        try:
            greet(sock, secret, _PURPOSE, _RECEIVER)
            sock.settimeout(SILENCE_S)
            stream = sock.makefile('rb')
            _write_line(sock, {'names': folder.names(path)})
            header, problem = _read_line(stream), ''
            try:
                if header['generation'] < generation:
                    raise CopyError('generation %s has ended: generation %d runs' % (header['generation'], generation))
                _receive(stream, path, header)
            except (OSError, CopyError) as error:
                problem = str(error)
            _write_line(sock, {'problem': problem})
            while problem and stream.read(1 << 20):
                pass  # a close with unread bytes would reset the connection before the other side has read the line
            return not problem
        except (OSError, ValueError, KeyError, TypeError, CopyError):
            return False


def _receive(stream: BinaryIO, path: str, header: Dict[str, Any]) -> None:
    aside = os.path.join(path, _RECEIVING)
    try:
        for name, files in header['new']:
            if not folder.NAME.fullmatch(name):
                raise CopyError('%r is not the name of a commit' % name)
            shutil.rmtree(aside, ignore_errors=True)
            os.mkdir(aside)
            for file, size in files:
                _receive_file(stream, aside, file, size)
            os.rename(aside, os.path.join(path, name))
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for name in folder.names(path):
        if name not in header['names']:
            shutil.rmtree(os.path.join(path, name), ignore_errors=True)


def _receive_file(stream: BinaryIO, aside: str, file: str, size: int) -> None:
    target = os.path.normpath(os.path.join(aside, file))
    if not target.startswith(aside + os.sep):
        raise CopyError('%r is not the name of a file of a commit' % file)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    left = size
    with open(target, 'wb') as copy:
        while left:
            piece = stream.read(min(left, 1 << 20))
            if not piece:
                raise CopyError('the other keeper has closed the connection')
            copy.write(piece)
            left -= len(piece)
