"""Format numbers and tables for people."""
from typing import Iterable, List


def size_text(count: float) -> str:
    """Return a number of bytes as text, with units of powers of 1000."""
    for unit in ('B', 'kB', 'MB', 'GB'):
        if count < 1000 or unit == 'GB':
            return '%.0f %s' % (count, unit) if unit == 'B' else '%.1f %s' % (count, unit)
        count /= 1000.0
    raise AssertionError


def seconds_text(seconds: float) -> str:
    """Return a time as text, in milliseconds below a second."""
    return '%.3g ms' % (1000 * seconds) if seconds < 1 else '%.3g s' % seconds


def listed(words: Iterable[str], most: int = 3) -> str:
    """Return words as a list for a message, which has the first ones and the number of the others."""
    first = list(words)
    more = ' and %d more' % (len(first) - most) if len(first) > most else ''
    return ', '.join(first[:most]) + more


def aligned(head: List[str], rows: List[List[str]]) -> str:
    """Return a table as text: the first column is aligned left, the others right."""
    widths = [max(len(line[column]) for line in [head] + rows) for column in range(len(head))]
    lines = []
    for line in [head, ['-' * width for width in widths]] + rows:
        cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        lines.append('  '.join(cells).rstrip())
    return '\n'.join(lines)
