"""Text for terminals: bars and curves made of characters, in ASCII if the terminal shows nothing else."""
import os
import shutil
import sys
from typing import IO, Sequence

from ..base.errors import InputError

#: Characters of a curve from low to high; characters of a bar: a full one, and its end in eighths.
_CURVE, _PLAIN_CURVE = '▁▂▃▄▅▆▇█', '_.-~=+*#'
_BAR, _PLAIN_BAR = '█▏▎▍▌▋▊▉', '#'


def shows(stream: IO[str]) -> bool:
    """Return whether the encoding of a stream has the characters of curves and bars."""
    try:
        (_CURVE + _BAR).encode(getattr(stream, 'encoding', None) or 'ascii')
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write(text: str) -> None:
    """Write a line to standard output and flush it; characters that its encoding lacks are escaped.

    Raises InputError if standard output cannot be written.
    """
    encoding = sys.stdout.encoding or 'ascii'
    try:
        sys.stdout.write(text.encode(encoding, 'backslashreplace').decode(encoding) + '\n')
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise InputError('standard output cannot be written: %s' % error) from error


def drop_output() -> None:
    """Discard text that is still buffered for standard output: Python would try to write it once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def columns() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size((100, 24)).columns


def curve(values: Sequence[float], width: int, plain: bool = False) -> str:
    """Return values, none negative, as a line of characters that stand for 0 up to the largest value.

    More values than `width` are averaged in groups.  `plain` uses ASCII only.
    """
    levels = _PLAIN_CURVE if plain else _CURVE
    if len(values) > width:
        edges = [column * len(values) // width for column in range(width + 1)]
        values = [sum(values[low:high]) / (high - low) for low, high in zip(edges, edges[1:])]
    top = max(values, default=0.0)
    if top <= 0:
        return levels[0] * len(values)
    return ''.join(levels[min(len(levels) - 1, int(value / top * len(levels)))] for value in values)


def bar(share: float, width: int, plain: bool = False) -> str:
    """Return a bar of at most `width` characters for `share`, 0 to 1; any share above 0 is visible.

    `plain` uses ASCII only.
    """
    share = min(1.0, max(0.0, share))
    if plain:
        return _PLAIN_BAR * max(int(share > 0), int(round(share * width)))
    eighths = max(int(share > 0), int(round(share * width * 8)))
    return _BAR[0] * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else '')
