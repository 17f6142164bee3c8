"""Tables and a picture of the cost model of Gholami et al.: costs by the number of ranks, and layer by layer."""
from typing import List, NamedTuple, Sequence, Union

from ...base.figures import new_figure, save_figure
from ...base.text import aligned, seconds_text, size_text
from .communication_cost import (
    AlphaBeta,
    AnalyticPlan,
    LayerTime,
    best_choices,
    best_grid,
    layer_times,
    pure_batch,
    pure_domain,
    pure_model,
)
from .layer_sizes import LayerSizes

#: The mark of a time for which some ranks have no work.
_IDLE = '*'
_IDLE_NOTE = '* some ranks have no work in a layer, which the formulas do not count'


class CostRow(NamedTuple):
    """Communication on a number of ranks, by each kind of plan."""

    ranks: int
    batch: AnalyticPlan
    model: AnalyticPlan
    domain: AnalyticPlan
    grid: AnalyticPlan
    choices: AnalyticPlan

    @property
    def gain(self) -> float:
        """The speedup of the best choices over pure batch parallelism; 1 if nothing is communicated."""
        return self.batch.seconds / self.choices.seconds if self.choices.seconds else 1.0


def cost_rows(layers: Sequence[LayerSizes], batch: int, ranks: Sequence[int], network: AlphaBeta
              ) -> List[CostRow]:
    """Return the communication costs for each number of ranks.

    Parameters
    ----------
    layers : sequence of LayerSizes
        In the order in which they run, from :func:`mxhybrid.planner.analytic.layer_sizes.layer_sizes` or by hand.
    batch : int
        Samples of the joint batch, the same for all numbers of ranks.
    ranks : sequence of int
    network : AlphaBeta

    Raises
    ------
    InputError
        There are no layers, or a number is out of its range.
    """
    return [CostRow(count, *(plan(layers, batch, count, network) for plan in (
        pure_batch, pure_model, pure_domain, best_grid, best_choices))) for count in ranks]


def cost_report(layers: Sequence[LayerSizes], batch: int, ranks: Sequence[int], network: AlphaBeta) -> str:
    """Return the table of costs by the number of ranks, and the table of layers for the last number of ranks.

    Parameters and errors are those of :func:`cost_rows`.
    """
    return '%s\n\n%s' % (cost_table(layers, batch, ranks, network),
                         layer_cost_table(layers, batch, ranks[-1], network))


def cost_table(layers: Sequence[LayerSizes], batch: int, ranks: Sequence[int], network: AlphaBeta) -> str:
    """Return the rows of :func:`cost_rows` as a table; parameters and errors are the same."""
    rows = cost_rows(layers, batch, ranks, network)
    head = ['ranks', 'batch', 'model', 'domain', '1.5D', 'Pr x Pc', 'by layer', 'Pr x Pc', 'batch / by layer']
    lines = [[str(row.ranks)] + [_marked(plan) for plan in (row.batch, row.model, row.domain, row.grid)]
             + [str(row.grid.grid), _marked(row.choices), str(row.choices.grid), '%.2f' % row.gain] for row in rows]
    title = ('communication in a step by the formulas of Gholami et al. (2018): batch of %d, %.3g us, %s/s, %d weights'
             % (batch, 1e6 * network.alpha_s, size_text(network.bytes_per_s), sum(layer.weights for layer in layers)))
    marked = any(_IDLE in cell for line in lines for cell in line)
    return '\n'.join([title, aligned(head, lines)] + [_IDLE_NOTE] * marked)


def layer_cost_table(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> str:
    """Return a table of each layer's time for each choice, and of its best choice, on the grid of
    :func:`.communication_cost.best_choices`; parameters and errors are the same.
    """
    plan = best_choices(layers, batch, ranks, network)
    lines, marked = [], False
    for layer, choice, chosen, redistribution in zip(layers, plan.choices, plan.times, plan.redistributions):
        times = layer_times(layer, batch, plan.grid, network)
        cells = [_marked(times[name]) if name in times else '-' for name in ('batch', 'model', 'domain')]
        marked = marked or any(_IDLE in cell for cell in cells)
        lines.append([layer.name, str(layer.weights), str(layer.outputs)] + cells + [choice] + [
            seconds_text(seconds) for seconds in (chosen.forward, chosen.backward, chosen.sums, redistribution)])
    head = ['layer', 'weights', 'outputs', 'batch', 'model', 'domain', 'choice', 'forward', 'backward', 'sums',
            'redistribution']
    title = 'layers on %d ranks as a grid of %s: %s in all' % (ranks, plan.grid, seconds_text(plan.seconds))
    return '\n'.join([title, aligned(head, lines)] + [_IDLE_NOTE] * marked)


def draw_costs(rows: Sequence[CostRow], picture: str) -> None:
    """Draw the costs by the number of ranks into an image file.

    Parameters
    ----------
    rows : sequence of CostRow
    picture : str
        The name of the file; its ending determines the format.

    Raises
    ------
    InputError
        matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure(7, 5)
    axes = figure.add_subplot()
    ranks = [row.ranks for row in rows]
    for label, style, plans in (('model', 's-', [row.model for row in rows]),
                                ('domain, and model for dense layers', '^-', [row.domain for row in rows]),
                                ('batch', 'o-', [row.batch for row in rows]),
                                ('1.5D, best Pr x Pc', 'D-', [row.grid for row in rows]),
                                ('best choice of each layer, best Pr x Pc', '*-', [row.choices for row in rows])):
        axes.plot(ranks, [1000 * plan.seconds for plan in plans], style, label=label, markersize=4)
    for row in rows:
        axes.annotate(str(row.choices.grid), (row.ranks, 1000 * row.choices.seconds), textcoords='offset points',
                      xytext=(0, -12), ha='center', fontsize='x-small')
    axes.set_xscale('log', base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.margins(y=0.1)
    if all(1000 * plan.seconds > 0 for row in rows for plan in row[1:]):
        axes.set_yscale('log')  # which has no 0: one rank sends nothing
    axes.set_xlabel('ranks')
    axes.set_ylabel('communication in a step (ms)')
    axes.legend(fontsize='small', ncol=2, loc='lower center', bbox_to_anchor=(0.5, 1))
    axes.grid(alpha=0.3)
    save_figure(figure, picture)


def _marked(time: Union[AnalyticPlan, LayerTime]) -> str:
    return seconds_text(time.seconds) + _IDLE * time.idle
