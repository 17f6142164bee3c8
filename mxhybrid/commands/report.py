"""Show step times, bytes and the routes of tables of a job, from its metrics.

FILE is written by worker 0 of a job with MXHYBRID_METRICS=FILE, or mxhybrid.create(metrics=FILE); the job may still be
running.  A file may hold several jobs, one after the other; the last one is shown, or that of --run.
"""
import argparse
import statistics
import sys
from typing import Any, Dict, List, Sequence, Tuple

from ..base.errors import InputError
from ..base.figures import new_figure, save_figure
from ..base.text import aligned, seconds_text, size_text
from . import console
from .main import run_alone
from .metrics_file import Run, TableSteps, read

_BAR_COLUMNS, _LABEL_COLUMNS = 20, 12
#: Share of all steps from which on the name of a route fits into its bar of a chart.
_LABELLED_SHARE = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('file', metavar='FILE', help='the metrics file')
    parser.add_argument('--png', metavar='PICTURE', help='also draw charts into this file; needs matplotlib')
    parser.add_argument('--run', type=int, metavar='N',
                        help='show the Nth run in the file, counted from 1 (default: the last one)')
    parser.add_argument('--ascii', action='store_true', help='draw with ASCII characters only')


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _times(run: Run, plain: bool, width: int) -> List[str]:
    # The first step includes loading and waiting for others: it would flatten the curve of all others.
    seconds = run.seconds[1:] or run.seconds
    inside = sum(step['store_seconds'] for step in run.steps) / max(1e-12, sum(run.seconds))
    return ['step time   median %s, 10%% below %s, 10%% above %s; %.0f%% of all time in the store'
            % (seconds_text(statistics.median(seconds)), seconds_text(percentile(seconds, 10)),
               seconds_text(percentile(seconds, 90)), 100 * inside),
            ' ' * _LABEL_COLUMNS + console.curve(seconds, max(10, width - _LABEL_COLUMNS), plain)]


def _routes(run: Run, plain: bool, width: int) -> List[str]:
    moved = run.bytes_by_route()
    if not any(map(any, moved.values())):
        return ['bytes       nothing was sent: the job is one process']
    return ['bytes       pushed and pulled by worker 0 per step, by route'] + _bars(moved, plain, width)


def _network(run: Run, plain: bool, width: int) -> List[str]:
    sent = {kind: counts['sent'] for kind, counts in run.network().items()}
    received = sum(sum(counts['received']) for counts in run.network().values())
    if not received and not any(map(any, sent.values())):
        return []
    title = "network     sent by worker 0's host to other hosts per step; received %s" % size_text(
        received / len(run.steps))
    return ['', title] + _bars(sent, plain, width)


def _commits(run: Run) -> List[str]:
    commits = run.commits()
    if not commits:
        return []
    seconds = [commit['seconds'] for commit in commits]
    return ['', 'commits     %d in generation %d: training waited for %s, %s at most; the largest had %s'
            % (len(commits), commits[-1]['generation'], seconds_text(statistics.median(seconds)),
               seconds_text(max(seconds)), size_text(max(commit['bytes'] for commit in commits)))]


def _bars(counts: Dict[str, List[int]], plain: bool, width: int) -> List[str]:
    """Return a line for each kind of bytes: its mean as a bar, and its curve."""
    means = {kind: sum(each) / len(each) for kind, each in counts.items()}
    largest, lines = max(1.0, *means.values()), []
    for kind, mean in sorted(means.items(), key=lambda item: -item[1]):
        # Padded by hand: characters count, not bytes.
        drawn = console.bar(mean / largest, _BAR_COLUMNS, plain).ljust(_BAR_COLUMNS)
        space = max(10, width - _LABEL_COLUMNS - 16 - _BAR_COLUMNS - 14)
        lines.append('%s%-16s %s %10s  %s' % (' ' * _LABEL_COLUMNS, kind, drawn, size_text(mean),
                                             console.curve(counts[kind], space, plain)))
    return lines


def _route_words(table: TableSteps) -> str:
    return ', '.join('%s from step %d' % (kind, first) if number else kind
                     for number, (first, kind) in enumerate(table.routes()))


def _tables(run: Run, plain: bool) -> List[str]:
    tables = run.tables()
    if not tables:
        return ['tables      none: all parameters are dense']
    total = sum(sum(counts) for counts in run.bytes_by_route().values())
    rows = []
    for table in tables:
        share = sum(table.moved) / total if total else 0.0
        moved = [size_text(table.mean(direction)) for direction in ('pushed', 'pulled')]
        alpha = '-' if table.alpha is None else '%.3g%%' % (100 * table.alpha)
        rows.append([table.name, '%.0f' % table.mean('rows'), alpha, *moved,
                     '%.0f%%' % (100 * share) if total else '-',
                     console.bar(share, _BAR_COLUMNS // 2, plain).ljust(_BAR_COLUMNS // 2), _route_words(table)])
    head = ['table', 'rows/step', 'alpha', 'pushed/step', 'pulled/step', 'of all bytes', '', 'route']
    width = max(len(row[-1]) for row in [head] + rows)
    rows = [row[:-1] + [row[-1].ljust(width)] for row in rows]
    return aligned(head[:-1] + [head[-1].ljust(width)], rows).splitlines()


def lines_of(run: Run, plain: bool, width: int) -> List[str]:
    """Return the lines of the report of a run; curves fill `width` columns, and `plain` uses ASCII only."""
    first, last = run.steps[0], run.steps[-1]
    title = 'steps %d to %d of store %d on worker 0, in %s' % (first['step'], last['step'], run.store,
                                                               seconds_text(sum(run.seconds)))
    return ([title, ''] + _times(run, plain, width) + [''] + _routes(run, plain, width) + _network(run, plain, width) +
            _commits(run) + [''] + _tables(run, plain))


def draw_run(run: Run, picture: str) -> None:
    """Draw step times, bytes by route, bytes by table, and the routes of tables, over the steps."""
    numbers = [step['step'] for step in run.steps]
    tables = run.tables()
    kinds = list(run.bytes_by_route())
    figure = new_figure(8, 9 + 0.25 * len(tables))
    heights = [1, 1, 1, 0.2 + 0.1 * len(tables)]
    times, routes, moved, table_routes = figure.subplots(4, 1, gridspec_kw={'height_ratios': heights})

    times.plot(numbers[1:] or numbers, [1000 * seconds for seconds in run.seconds[1:] or run.seconds], label='step')
    times.plot(numbers[1:] or numbers, [1000 * step['store_seconds'] for step in run.steps[1:] or run.steps],
               label='in the store')
    times.set_ylabel('ms')
    for number, kind in enumerate(kinds):
        routes.plot(numbers, [count / 1e6 for count in run.bytes_by_route()[kind]], label=kind,
                    color='C%d' % (number % 10))
    routes.set_ylabel('MB per step, by route')
    for table in tables:
        moved.plot(numbers, [count / 1e6 for count in table.moved], label=table.name)
    moved.set_ylabel('MB per step, by table')
    for row, table in enumerate(tables):
        for first, length, kind in _stretches(table.routes(), numbers[-1] + 1):
            color = 'C%d' % (kinds.index(kind) % 10)
            table_routes.broken_barh([(first - 0.5, length)], (row - 0.4, 0.8), facecolors=color)
            if length >= _LABELLED_SHARE * len(numbers):  # shorter bars are told apart by colour
                table_routes.annotate(kind, (first, row), va='center', fontsize='x-small')
    table_routes.set_yticks(range(len(tables)))
    table_routes.set_yticklabels([table.name for table in tables], fontsize='small')
    table_routes.set_xlabel('step')
    for axes in (times, routes, moved, table_routes):
        axes.set_xlim(numbers[0] - 0.5, numbers[-1] + 0.5)
        if axes is not table_routes:
            axes.set_ylim(bottom=0)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize='small', loc='best', framealpha=0.5)
    save_figure(figure, picture)


def _stretches(routes: List[Tuple[int, str]], end: int) -> List[Tuple[int, int, str]]:
    """Return the first step, the number of steps and the name of each route of a table."""
    ends = [first for first, _ in routes[1:]] + [end]
    return [(first, after - first, kind) for (first, kind), after in zip(routes, ends)]


def choose(runs: List[Run], number: Any) -> Run:
    """Return the run with a number, by default the last one; InputError if there is no such run."""
    if number is None:
        return runs[-1]
    if not 1 <= number <= len(runs):
        raise InputError('--run %d: the file holds %d run%s: give a number from 1 to %d'
                         % (number, len(runs), 's' * (len(runs) != 1), len(runs)))
    return runs[number - 1]


def run(options: argparse.Namespace) -> int:
    runs, broken = read(options.file)
    chosen = choose(runs, options.run)
    plain = options.ascii or not console.shows(sys.stdout)
    for line in lines_of(chosen, plain, console.columns()):
        console.write(line)
    if len(runs) > 1:
        console.write('\nrun %d of %d in this file; --run shows another one' % (runs.index(chosen) + 1, len(runs)))
    if broken:
        console.write('\n%d incomplete line%s left out: a job is still writing, or was killed'
                      % (broken, ' was' if broken == 1 else 's were'))
    if options.png:
        draw_run(chosen, options.png)
    return 0


if __name__ == '__main__':
    sys.exit(run_alone('report'))
