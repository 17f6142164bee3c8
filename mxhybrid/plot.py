"""Shows what a search for partition counts found; ``mxhybrid plot``, or ``python -m mxhybrid.plot``, is its face."""
from typing import Any, Dict, List, Optional

from . import plan_file
from .commands import console
from .commands.drawing import new_figure, save
from .errors import InputError
from .tuning import Fit


def draw(content: Dict[str, Any], picture: str) -> None:
    """Draw samples and fit of every table that was searched into an image file.

    Raises
    ------
    InputError
        matplotlib is not installed, there is nothing to draw, or the file cannot be written.
    """
    tables = {name: entry for name, entry in content['tables'].items() if entry['samples']}
    if not tables:
        raise InputError('no table was searched: there is nothing to draw')
    figure = new_figure(6, 4 * len(tables))
    for at, (name, entry) in enumerate(sorted(tables.items())):
        axes = figure.add_subplot(len(tables), 1, at + 1)
        counts = [count for count, _ in entry['samples']]
        axes.plot(counts, [1000 * seconds for _, seconds in entry['samples']], 'o', label='measured')
        if entry.get('theta'):
            model = Fit(*entry['theta'])
            line = [counts[0] * (counts[-1] / counts[0]) ** (step / 100) for step in range(101)]
            axes.plot(line, [1000 * model.seconds(count) for count in line],
                      label='%.3g + %.3g / P + %.3g P' % tuple(1000 * theta for theta in entry['theta']))
        axes.axvline(entry['partitions'], linestyle=':', color='gray', label='P = %d' % entry['partitions'])
        axes.set_xscale('log', base=2)
        axes.set_xlabel('partitions P')
        axes.set_ylabel('ms a step')
        axes.set_title(name)
        axes.legend()
    save(figure, picture)


def lines(content: Dict[str, Any]) -> List[str]:
    """The plan in words, a line a table."""
    found = ['%d workers, %d servers; a step took %.3g ms before and %.3g ms after; %.3g s of %.3g s lost'
             % (content['workers'], content['servers'], 1000 * content['seconds_before'],
                1000 * content['seconds_after'], content['lost'], content['budget'])]
    for name, entry in sorted(content['tables'].items()):
        samples = ', '.join('%d: %.3g ms' % (count, 1000 * seconds) for count, seconds in entry['samples'])
        found.append('%s: %d partitions (%s)%s' % (name, entry['partitions'], entry.get('reason'),
                                                   '; ' + samples if samples else ''))
    return found


def show(path: str, picture: Optional[str]) -> None:
    """Print a plan file and, where a picture is asked for, draw it.

    Raises
    ------
    InputError
        It cannot be read or drawn.
    """
    content = plan_file.read(path)
    if content is None:
        raise InputError('%s does not exist' % path)
    console.write('\n'.join(lines(content)))
    if picture:
        draw(content, picture)


if __name__ == '__main__':
    import sys

    from .commands.main import run_alone

    sys.exit(run_alone('plot'))
