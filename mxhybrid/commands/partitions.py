"""Show the partition counts that a search (partitions='auto') found.

FILE was written by a job with MXHYBRID_PARTITION_FILE=FILE.  The command prints the samples and the chosen count of
each table; with PICTURE it also draws the samples and the fit.
"""
import argparse
import sys
from typing import Any, Dict, List

from ..base.errors import InputError
from ..base.figures import new_figure, save_figure
from . import console
from .main import run_alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('file', metavar='FILE', help='the partition file')
    parser.add_argument('picture', metavar='PICTURE', nargs='?',
                        help='image file to draw samples and fit into, for example partitions.png; needs matplotlib')


def draw_search(content: Dict[str, Any], picture: str) -> None:
    """Draw samples and fit of every table that was searched into an image file."""
    from ..routes.partition_search import Fit  # needs NumPy

    tables = {name: entry for name, entry in content['tables'].items() if entry['samples']}
    if not tables:
        raise InputError('no table was searched: there is nothing to draw: leave PICTURE out')
    figure = new_figure(6, 4 * len(tables))
    for number, (name, entry) in enumerate(sorted(tables.items()), 1):
        axes = figure.add_subplot(len(tables), 1, number)
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
        axes.set_ylabel('step (ms)')
        axes.set_title(name)
        axes.legend()
    save_figure(figure, picture)


def lines_of(content: Dict[str, Any]) -> List[str]:
    """Return the content as text, with a line for each table."""
    lines = ['%d workers, %d servers; a step took %.3g ms before and %.3g ms after; the search lost %.3g s of at most '
             '%.3g s' % (content['workers'], content['servers'], 1000 * content['seconds_before'],
                         1000 * content['seconds_after'], content['lost'], content['budget'])]
    for name, entry in sorted(content['tables'].items()):
        samples = ', '.join('%d: %.3g ms' % (count, 1000 * seconds) for count, seconds in entry['samples'])
        lines.append('%s: %d partitions (%s)%s' % (name, entry['partitions'], entry.get('reason'),
                                                   '; ' + samples if samples else ''))
    return lines


def run(options: argparse.Namespace) -> int:
    try:
        from ..routes import partition_cache  # needs NumPy
    except ImportError as error:
        raise InputError(str(error)) from error
    content = partition_cache.read(options.file)
    if content is None:
        raise InputError('%s does not exist: give the file of the setting partition_file' % options.file)
    console.write('\n'.join(lines_of(content)))
    if options.picture:
        draw_search(content, options.picture)
    return 0


if __name__ == '__main__':
    sys.exit(run_alone('partitions'))
