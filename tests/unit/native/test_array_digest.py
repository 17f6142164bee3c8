"""Digests of arrays: equal for equal bytes, whatever their place in memory."""
import numpy as np
import pytest

from mxhybrid.native.array_digest import array_digest

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize('array', [
    np.zeros((0, 3)), np.float32(1.5), np.arange(24.).reshape(2, 3, 4), np.arange(6, dtype=np.float16),
    np.arange(12, dtype=np.int64).reshape(3, 4).T, np.arange(10, dtype=np.uint8)[::2]])
def test_copies_have_equal_digests_and_changed_bits_do_not(array):
    digest = array_digest(array)
    assert len(digest) == 16 and array_digest(np.array(array, order='C')) == digest
    data = bytearray(np.asarray(array).tobytes())
    for position in range(len(data)):
        data[position] ^= 1
        assert array_digest(np.frombuffer(data, np.uint8)) != digest
        data[position] ^= 1
    assert array_digest(np.frombuffer(data, np.uint8)) == digest


def test_several_arrays_are_read_in_order():
    first, second = np.arange(3), np.arange(4)
    assert array_digest(first, second) != array_digest(second, first)
    assert array_digest(first, second) == array_digest(np.concatenate([first, second]))
