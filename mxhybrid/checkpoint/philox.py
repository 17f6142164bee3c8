"""First values of rows in NumPy, for readers without the compiled library: the bits of
``row_store/src/store/first_values.cc``.

Rows of dynamic tables that no push has touched are stored nowhere.  Their values are a function of the table's seed and
their key: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and
for normal values pairs by Box and Muller (1958).
"""
import math
from typing import Any, Dict, List, Sequence

import numpy as np

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
#: Words of random bits that are made at a time.
_WORDS = 1 << 20


def philox(counter: Sequence[np.ndarray], key: Sequence[int]) -> List[np.ndarray]:
    """Return the four words, arrays of uint32, of a counter of four arrays of uint32 and a key of two words."""
    words = [np.asarray(word, np.uint32) for word in counter]
    round_key = np.array(key, np.uint32)
    for _ in range(_ROUNDS):
        products = [_MULTIPLIERS[half] * words[2 * half].astype(np.uint64) for half in (0, 1)]
        high = [(product >> _HALF).astype(np.uint32) for product in products]
        low = [(product & _LOW).astype(np.uint32) for product in products]
        words = [high[1] ^ words[1] ^ round_key[0], low[1], high[0] ^ words[3] ^ round_key[1], low[0]]
        round_key = round_key + np.array(_WEYL, np.uint32)
    return words


def fill_first_values(first_values: Dict[str, Any], keys: np.ndarray, out: np.ndarray) -> None:
    """Write the first values of the rows of `keys`, int64, to `out`, which has a row for each key.

    `first_values` has 'kind' ('zero', 'constant', 'uniform' or 'normal'), 'value' and 'seed'.
    """
    kind, value = first_values['kind'], float(first_values['value'])
    if kind in ('zero', 'constant'):
        out[...] = value if kind == 'constant' else 0
        return
    width = out.shape[1]
    step = max(1, _WORDS // max(1, width))
    for start in range(0, len(keys), step):
        piece = keys[start:start + step]
        numbers = _numbers(piece, width, first_values['seed'])
        drawn = 2 * numbers - 1 if kind == 'uniform' else _normal(numbers)
        out[start:start + len(piece)] = (drawn * value).reshape(len(piece), -1)[:, :width]


def _numbers(keys: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Return numbers in (0, 1), of shape (keys, groups of four columns, 4)."""
    bits = np.ascontiguousarray(keys, np.int64).view(np.uint64)[:, None]
    groups = np.broadcast_to(np.arange((width + 3) // 4, dtype=np.uint32), (len(keys), (width + 3) // 4))
    low, high = (np.broadcast_to(half.astype(np.uint32), groups.shape) for half in (bits & _LOW, bits >> _HALF))
    words = philox([low, high, groups, np.zeros_like(groups)], [seed & 0xFFFFFFFF, seed >> 32])
    return (np.stack(words, axis=-1) + 0.5) * 2.0 ** -32


def _normal(numbers: np.ndarray) -> np.ndarray:
    # The functions of the C library: NumPy's own differ in the last bits.
    log, cos, sin = (np.frompyfunc(function, 1, 1) for function in (math.log, math.cos, math.sin))
    radius = np.sqrt(-2 * log(numbers[..., ::2]).astype(float))
    angle = 6.283185307179586 * numbers[..., 1::2]
    pairs = radius * cos(angle).astype(float), radius * sin(angle).astype(float)
    return np.stack(pairs, axis=-1).reshape(numbers.shape)
