"""Sealed messages: messages of the job are accepted once and in order; all others are dropped and change nothing."""
import json
import pickle
import string

import pytest
from hypothesis import example, given, settings, strategies as st

from mxhybrid.base.errors import HybridError, RefusedError
from mxhybrid.messaging import sealed as sealed_module
from mxhybrid.messaging.sealed import Opener, Sealer, is_proof, new_secret, prove

pytestmark = pytest.mark.both_pythons

SECRET = new_secret()
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                      max_leaves=4)
ARGUMENTS = st.dictionaries(st.text(), VALUES, max_size=3)


def assert_refused(opener, message):
    """A message is refused, with that error only, and the opener does not change."""
    before = bytes(opener._key), opener._last
    with pytest.raises(HybridError) as caught:
        opener.open(message)
    assert type(caught.value) is RefusedError
    assert (bytes(opener._key), opener._last) == before
    assert SECRET not in str(caught.value)


def sealed(body, secret=SECRET):
    """Any text after a good MAC."""
    return b'%s %s' % (sealed_module._mac(Sealer(secret)._key, body), body)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(), ARGUMENTS), max_size=3), st.booleans())
def test_sealed_messages_open_once_and_in_order(commands, as_bytes):
    sealer, opener = Sealer(SECRET), Opener(SECRET)
    messages = [sealer.seal(*command) for command in commands]
    for command, message in zip(commands, messages):
        assert message.isascii() and '\0' not in message  # it travels as a C string
        assert opener.open(message.encode() if as_bytes else message) == command
    for message in messages:
        assert_refused(opener, message)


@given(st.permutations(range(6)))
def test_only_growing_numbers_get_through(order):
    sealer, opener = Sealer(SECRET), Opener(SECRET)
    messages = [sealer.seal('mode', {'number': number}) for number in range(6)]
    last = -1
    for number in order:
        if number > last:
            assert opener.open(messages[number]) == ('mode', {'number': number})
            last = number
        else:
            assert_refused(opener, messages[number])


def test_secrets_are_long_and_never_the_same():
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100 and all(len(secret) == 64 and set(secret) <= set(string.hexdigits) for secret in made)


@given(st.binary() | st.text())
@example(b'')
@example('')
@example('\ud800')
@example(b'0' * 64 + b' [1, "mode", {}]')
@example(b' ' * 200)
@example(pickle.dumps({'an': 'optimizer'}, 0))
def test_noise_is_refused(message):
    assert_refused(Opener(SECRET), message)


@given(st.data())
def test_one_wrong_bit_is_refused(data):
    opener = Opener(SECRET)
    message = bytearray(Sealer(SECRET).seal('optimizer', {'keys': [3, 4], 'attributes': {'lr': 0.5}}).encode())
    at = data.draw(st.integers(0, 8 * len(message) - 1))
    message[at // 8] ^= 1 << at % 8
    assert_refused(opener, bytes(message))


@given(st.data())
def test_pieces_and_additions_are_refused(data):
    opener = Opener(SECRET)
    message = Sealer(SECRET).seal('optimizer', {'keys': [3, 4]}).encode()
    start = data.draw(st.integers(0, len(message) - 1))
    stop = data.draw(st.integers(start, len(message)))
    if (start, stop) != (0, len(message)):
        assert_refused(opener, message[start:stop])
    assert_refused(opener, message + data.draw(st.binary(min_size=1)))
    assert_refused(opener, data.draw(st.binary(min_size=1)) + message)
    assert opener.open(message) == ('optimizer', {'keys': [3, 4]})


@given(st.text().filter(lambda secret: secret != SECRET))
def test_another_secret_is_refused(secret):
    try:
        message = Sealer(secret).seal('mode', {'keys': [1]})
    except UnicodeEncodeError:
        return  # no secret of ours
    assert_refused(Opener(SECRET), message)


def test_another_purpose_is_refused():
    """A proof for the monitor is no MAC of a command."""
    body = json.dumps(['7', 'worker 0', 0])
    assert_refused(Opener(SECRET), '%s %s' % (prove(SECRET, '7', 'worker 0', 0), body))


@pytest.mark.parametrize('body', [
    b'', b'{}', b'[]', b'7', b'null', b'"abc"', b'[1, "mode"]', b'[1, "mode", {}, 2]', b'["1", "mode", {}]',
    b'[true, "mode", {}]', b'[1.0, "mode", {}]', b'[1e999, "mode", {}]', b'[NaN, "mode", {}]', b'[1, 2, {}]',
    b'[1, "mode", []]', b'[1, null, null]', b'[0, "mode", {}]', b'[-1, "mode", {}]', b'{"a": 1, "b": 2, "c": 3}',
    b'\xff\xfe', b'\0', b'[1, "mode", {}', b'[' * 100000, b'[1, "mode", ' + b'{"a": ' * 100000,
    b'[1, "mode", {"a": ' + b'[' * 50000 + b']' * 50000 + b'}]', b'[-' + b'1' * 10000 + b', "mode", {}]',
    b'[' + b'0' * (1 << 20)])
def test_a_sealed_message_must_be_a_command(body):
    opener = Opener(SECRET)
    assert_refused(opener, sealed(body))
    assert opener.open(sealed(b'[1, "mode", {}]')) == ('mode', {})


@given(st.binary())
def test_sealed_noise_is_refused(body):
    assert_refused(Opener(SECRET), sealed(body))


@pytest.mark.parametrize('size', [1 << 10, 1 << 24])
def test_huge_messages(size):
    opener = Opener(SECRET)
    assert_refused(opener, b'[' * size)
    assert_refused(opener, b'0' * 64 + b' ' + b'[' * size)
    assert opener.open(Sealer(SECRET).seal('table', {'table': 'x' * size})) == ('table', {'table': 'x' * size})


def test_a_sealer_that_forgot_is_a_stranger():
    sealer, opener = Sealer(SECRET), Opener(SECRET)
    assert opener.open(sealer.seal('mode', {})) == ('mode', {})
    sealer.forget()
    assert_refused(opener, sealer.seal('mode', {}))


@given(st.text(), st.text(), st.integers(), st.text())
@example('é', '\ud800', 0, '\ud800')
def test_a_proof_is_valid_for_its_purpose_only(nonce, name, rank, noise):
    proof = prove(SECRET, nonce, name, rank)
    assert is_proof(proof, SECRET, nonce, name, rank)
    for other in (prove(SECRET, nonce + '0', name, rank), prove(SECRET, nonce, name + '0', rank),
                  prove(SECRET, nonce, name, rank + 1), prove(SECRET + '0', nonce, name, rank), noise, proof[:-1]):
        assert not is_proof(other, SECRET, nonce, name, rank)
