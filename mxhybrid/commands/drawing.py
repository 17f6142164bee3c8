"""Charts of a run as an image file: step times, bytes, and routes of tables."""
from typing import List, Tuple

from ..base.figures import new_figure, save_figure
from .metrics_file import Run

#: Share of all steps from which on the name of a route fits into its bar.
_LABELLED_SHARE = 0.25


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
            color = 'C%d' % (kinds.index(kind) % 10) if kind in kinds else 'gray'
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
