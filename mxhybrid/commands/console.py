"""Text for terminals: boxes, bars and curves of characters, plain ASCII where nothing else can be shown."""
import os
import shutil
import sys
from typing import IO, Sequence

from ..base.errors import InputError

#: Characters of a curve from low to high, and of a bar: full, and its end by eighths or halves.
_CURVE, _PLAIN_CURVE = '▁▂▃▄▅▆▇█', '_.-~=+*#'
_BAR, _PLAIN_BAR = '█▏▎▍▌▋▊▉', '#'

_DEFAULT_COLUMNS = 100


def shows(stream: IO[str], text: str = _CURVE + _BAR) -> bool:
    """Whether the encoding of a stream has the characters of `text`."""
    try:
        text.encode(getattr(stream, 'encoding', None) or 'ascii')
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class OutputError(InputError):
    """Standard output cannot be written."""


def write(text: str) -> None:
    """Write a line to standard output at once, with what its encoding lacks escaped; OutputError where it cannot be."""
    encoding = sys.stdout.encoding or 'ascii'
    try:
        sys.stdout.write(text.encode(encoding, 'backslashreplace').decode(encoding) + '\n')
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise OutputError('standard output cannot be written: %s' % error) from error


def drop_output() -> None:
    """What is still to be written to standard output is not: Python would try once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def columns() -> int:
    """Width of the terminal."""
    return shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns


def curve(values: Sequence[float], width: int, plain: bool = False) -> str:
    """Values, none negative, as a line of characters, from 0 to the largest; more than `width` are taken together by
    their mean, and `plain` is ASCII only.
    """
    levels = _PLAIN_CURVE if plain else _CURVE
    if len(values) > width:
        edges = [at * len(values) // width for at in range(width + 1)]
        values = [sum(values[low:high]) / (high - low) for low, high in zip(edges, edges[1:])]
    top = max(values, default=0.0)
    if top <= 0:
        return levels[0] * len(values)
    return ''.join(levels[min(len(levels) - 1, int(value / top * len(levels)))] for value in values)


def bar(share: float, width: int, plain: bool = False) -> str:
    """A bar of `share`, 0 to 1, of `width` characters; whatever is not nothing can be seen.  `plain` is ASCII only."""
    share = min(1.0, max(0.0, share))
    if plain:
        return _PLAIN_BAR * max(int(share > 0), int(round(share * width)))
    eighths = max(int(share > 0), int(round(share * width * 8)))
    return _BAR[0] * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else '')
