"""``python -m mxhybrid.plot FILE [PICTURE]``: shows what a search for partition counts found."""
import argparse
import sys
from typing import Any, Dict, List, Optional

from . import plan_file
from .errors import InputError
from .tuning import Fit


def draw(content: Dict[str, Any], picture: str) -> None:
    """Draw samples and fit of every table that was searched into an image file.

    Raises
    ------
    InputError
        matplotlib is not installed, or there is nothing to draw.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError('drawing needs matplotlib: pip install matplotlib') from error
    tables = {name: entry for name, entry in content['tables'].items() if entry['samples']}
    if not tables:
        raise InputError('no table was searched: there is nothing to draw')
    figure = Figure(figsize=(6, 4 * len(tables)))
    FigureCanvasAgg(figure)
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
    figure.tight_layout()
    figure.savefig(picture)


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


def main(arguments: Optional[List[str]] = None) -> None:
    """Print a plan file and, with a second argument, draw it."""
    parser = argparse.ArgumentParser(prog='python -m mxhybrid.plot',
                                     description='Show what a search for partition counts found.')
    parser.add_argument('file', help='the plan file')
    parser.add_argument('picture', nargs='?', help='image file to draw samples and fit into, for example plan.png')
    given = parser.parse_args(arguments)
    try:
        content = plan_file.read(given.file)
        if content is None:
            raise InputError('%s does not exist' % given.file)
        sys.stdout.write('\n'.join(lines(content)) + '\n')
        if given.picture:
            draw(content, given.picture)
    except InputError as error:
        parser.exit(1, '%s\n' % error)


if __name__ == '__main__':
    main()
