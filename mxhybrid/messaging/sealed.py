"""Sealed messages, which only processes of the job can write: HMAC (RFC 2104, SHA-256) with a secret of the job.

A sealed message is text, ``MAC JSON``: 64 hexadecimal digits over the text after the space, which is
``[number, name, arguments]``.  The MAC is compared before anything is parsed, so no parser reads messages of strangers.
Numbers increase, so a message cannot be sent a second time, nor an older one after a newer one.  Nothing in a message
can run code.

This keeps out programs that can reach the ports of a job.  It does not hide contents, and a program that reads the
traffic of the job while it starts can read the secret.
"""
import hashlib
import hmac
import json
import secrets
from typing import Any, Dict, Tuple, Union

from ..base import json_text
from ..base.errors import RefusedError

_SECRET_BYTES = 32
_MAC_DIGITS = 2 * hashlib.sha256().digest_size


def new_secret() -> str:
    """Return a secret for a new job: 64 hexadecimal digits."""
    return secrets.token_hex(_SECRET_BYTES)


def _key(secret: str, purpose: bytes) -> bytearray:
    """Return the key for one purpose, so that a MAC is not valid for another purpose."""
    return bytearray(hmac.new(secret.encode(), purpose, hashlib.sha256).digest())


def _mac(key: bytearray, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).hexdigest().encode()


class Sealer:
    """A sealer of the commands of one sender, with the secret of the job."""

    def __init__(self, secret: str):
        self._key = _key(secret, b'commands')
        self._number = 0

    def seal(self, name: str, arguments: Dict[str, Any]) -> str:
        """Return a command as ASCII text; `arguments` are JSON values."""
        self._number += 1
        text = json.dumps([self._number, name, arguments])
        return '%s %s' % (_mac(self._key, text.encode()).decode(), text)

    def forget(self) -> None:
        """Overwrite the key, for example in a forked child; later sealed commands are refused."""
        self._key[:] = secrets.token_bytes(len(self._key))


class Opener:
    """An opener of messages from the :class:`Sealer` with the same secret, each once and in order."""

    def __init__(self, secret: str):
        self._key = _key(secret, b'commands')
        self._last = 0

    def open(self, message: Union[bytes, str]) -> Tuple[str, Dict[str, Any]]:
        """Return name and arguments of a sealed command; RefusedError if it is not from this job, or not new.

        A refused message does not change the opener.
        """
        data = message.encode(errors='replace') if isinstance(message, str) else message
        mac, text = data[:_MAC_DIGITS + 1], data[_MAC_DIGITS + 1:]
        if not hmac.compare_digest(mac, _mac(self._key, text) + b' '):
            raise RefusedError('it is not sealed with the secret of this job')
        try:
            number, name, arguments = json_text.parse(text)
        except (ValueError, TypeError):
            raise RefusedError('it is sealed, but not a command') from None
        if type(number) is not int or not isinstance(name, str) or not isinstance(arguments, dict):
            raise RefusedError('it is sealed, but not a command')
        if number <= self._last:
            raise RefusedError('it has number %d, but number %d was carried out already: it was sent again, or late'
                               % (number, self._last))
        self._last = number
        return name, arguments


def prove(secret: str, nonce: str, name: str, rank: int) -> str:
    """Return the proof, for a `nonce` that is used once, that a process of the job has this name and rank."""
    return _mac(_key(secret, b'hello'), json.dumps([nonce, name, rank]).encode()).decode()


def is_proof(answer: str, secret: str, nonce: str, name: str, rank: int) -> bool:
    """Return whether `answer` is the result of :func:`prove`, in a time that does not depend on the answer."""
    return hmac.compare_digest(answer.encode(errors='replace'), prove(secret, nonce, name, rank).encode())
