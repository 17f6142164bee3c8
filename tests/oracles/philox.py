"""First values of rows of dynamic tables, written after the paper of Philox4x32-10 (Salmon et al., SC 2011)."""
import math

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def philox4x32(counter, key):
    """Return the four words of a counter of four words and a key of two."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        first, second = MULTIPLIERS[0] * counter[0], MULTIPLIERS[1] * counter[2]
        counter = [second >> 32 ^ counter[1] ^ key[0], second & WORD, first >> 32 ^ counter[3] ^ key[1], first & WORD]
        key = [(word + step) & WORD for word, step in zip(key, WEYL)]
    return counter


def first_values(kind, value, seed, key, width):
    """Return the first values of a row, float64."""
    if kind in ('zero', 'constant'):
        return np.full(width, value if kind == 'constant' else 0.0)
    row = []
    for block in range((width + 3) // 4):
        bits = key % (1 << 64)
        words = philox4x32([bits & WORD, bits >> 32, block, 0], [seed & WORD, seed >> 32])
        numbers = [(word + 0.5) / 2 ** 32 for word in words]
        if kind == 'uniform':
            row += [2 * number - 1 for number in numbers]
            continue
        for first, second in (numbers[:2], numbers[2:]):
            radius = math.sqrt(-2 * math.log(first))
            row += [radius * math.cos(2 * math.pi * second), radius * math.sin(2 * math.pi * second)]
    return np.array(row[:width]) * value
