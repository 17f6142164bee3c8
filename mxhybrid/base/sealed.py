"""Messages that only processes of the job can have written: HMAC (RFC 2104, SHA-256) with a secret that each job makes.

A sealed message is text, ``MAC JSON``: 64 hexadecimal digits over everything behind the space, which is
``[number, name, arguments]``.  The MAC is compared before anything is parsed, so that what strangers send meets no
parser; numbers only ever grow, so that a message cannot be sent a second time, nor an older one after a newer one.
Nothing in a message can run code.

This keeps out who can reach the ports of a job.  It does not hide contents, and who can read the job's traffic while
it starts can read the secret.
"""
import hashlib
import hmac
import json
import secrets
from typing import Any, Dict, Tuple, Union

from .errors import RefusedError

_SECRET_BYTES = 32
_MAC_DIGITS = 2 * hashlib.sha256().digest_size


def new_secret() -> str:
    """A secret for a new job, of 64 hexadecimal digits."""
    return secrets.token_hex(_SECRET_BYTES)


def _key(secret: str, purpose: bytes) -> bytearray:
    """The key for one purpose: a MAC made for one is worth nothing for another."""
    return bytearray(hmac.new(secret.encode(), purpose, hashlib.sha256).digest())


def _mac(key: bytearray, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).hexdigest().encode()


class Sealer:
    """Seals the commands of one sender, with the job's secret."""

    def __init__(self, secret: str):
        self._key = _key(secret, b'commands')
        self._number = 0

    def seal(self, name: str, arguments: Dict[str, Any]) -> str:
        """A command as ASCII text; `arguments` are JSON values."""
        self._number += 1
        text = json.dumps([self._number, name, arguments])
        return '%s %s' % (_mac(self._key, text.encode()).decode(), text)

    def forget(self) -> None:
        """Overwrite the key, in a forked child say; what is sealed from now on is refused."""
        self._key[:] = secrets.token_bytes(len(self._key))


class Opener:
    """Opens what the :class:`Sealer` with the same secret has sealed, each message once and in order."""

    def __init__(self, secret: str):
        self._key = _key(secret, b'commands')
        self._last = 0

    def open(self, message: Union[bytes, str]) -> Tuple[str, Dict[str, Any]]:
        """Name and arguments of a sealed command; RefusedError where it is none of this job, or not a new one, and the
        opener stays as it was.
        """
        data = message.encode(errors='replace') if isinstance(message, str) else message
        given, text = data[:_MAC_DIGITS + 1], data[_MAC_DIGITS + 1:]
        if not hmac.compare_digest(given, _mac(self._key, text) + b' '):
            raise RefusedError('it is not sealed with the secret of this job')
        try:
            number, name, arguments = json.loads(text.decode())
        except (ValueError, TypeError, RecursionError):
            raise RefusedError('it is sealed, but not a command') from None
        if type(number) is not int or not isinstance(name, str) or not isinstance(arguments, dict):
            raise RefusedError('it is sealed, but not a command')
        if number <= self._last:
            raise RefusedError('it has number %d, but number %d was carried out: sent again, or late'
                               % (number, self._last))
        self._last = number
        return name, arguments


def prove(secret: str, nonce: str, name: str, rank: int) -> str:
    """What only a process of the job can answer when asked `nonce`, a number used once, for who it is."""
    return _mac(_key(secret, b'hello'), json.dumps([nonce, name, rank]).encode()).decode()


def is_proof(answer: str, secret: str, nonce: str, name: str, rank: int) -> bool:
    """Whether `answer` is what :func:`prove` gives, found out in a time that tells nothing."""
    return hmac.compare_digest(answer.encode(errors='replace'), prove(secret, nonce, name, rank).encode())
