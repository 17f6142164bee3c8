"""A picture of the figures: bars for the last number of hosts, a curve over all of them; or predictions."""
from typing import Any, Dict, List

import numpy as np

from mxhybrid.base.figures import new_figure, save_figure

from .report import MB

COLOURS = {'hybrid': '#c0392b', 'hybrid_prefetch': '#8e2b20', 'hybrid_stale': '#d98880', 'hybrid_engines': '#27ae60',
           'hybrid_float16': '#e8998d', 'hybrid_int8': '#f3c9c2', 'dist_sync': '#7f8c8d',
           'horovod_gather': '#2980b9', 'horovod_dense': '#8fb8d8', 'torch_sharded': '#e67e22', 'torchrec': '#f1c40f'}
BOUND = '#2c3e50'
#: The error of a predicted step that is shown as right.
_ERROR = 0.15


def draw(result: Dict[str, Any], file: str) -> None:
    """Draw a result, as `cli` writes it to JSON, into an image file."""
    runs, settings = result['runs'], result['settings']
    if 'predicted' in runs[0]:
        _draw_predictions(runs, file)
        return
    curve, last = len(runs) > 1, runs[-1]
    columns = 3 if curve else 2
    figure = new_figure(5 * columns, 4.5)
    axes = figure.subplots(1, columns)
    _bars(axes[0], last, 'step_s', 1, 'seconds per step', spread=True)
    _bars(axes[1], last, 'sent', MB, 'MB sent by the busiest host per step')
    if curve:
        _curve(axes[2], runs)
    link = 'no network' if last['mbit'] is None else '%g Mbit/s links' % last['mbit']
    figure.suptitle('%s: %d hosts x %d workers, %s; %s'
                    % (settings['workload'], last['hosts'], last['workers'], link, last['model']))
    save_figure(figure, file)


def _draw_predictions(runs: List[Dict[str, Any]], file: str) -> None:
    figure = new_figure(6, 6)
    axes = figure.add_subplot()
    for run in runs:
        link = 'no network' if run['mbit'] is None else '%g Mbit/s' % run['mbit']
        axes.plot(list(run['measured'].values()), [run['predicted'][name] for name in run['measured']], 'o', alpha=0.7,
                  label='%s, %d x %d, %s' % (run['case'], run['hosts'], run['workers'], link))
    every = [seconds for run in runs for what in ('measured', 'predicted') for seconds in run[what].values()]
    ends = np.array([0.8 * min(every), 1.25 * max(every)])
    axes.plot(ends, ends, color=BOUND, label='as measured')
    axes.fill_between(ends, ends * (1 - _ERROR), ends * (1 + _ERROR), color=BOUND, alpha=0.15,
                      label='within %g %%' % (100 * _ERROR))
    axes.set(xscale='log', yscale='log', xlim=ends, ylim=ends, xlabel='seconds a step, measured',
             ylabel='seconds a step, predicted', aspect='equal')
    axes.legend(fontsize='small')
    save_figure(figure, file)


def _bars(axes: Any, run: Dict[str, Any], name: str, scale: float, label: str, spread: bool = False) -> None:
    names = [contender for contender, figures in run['contenders'].items() if figures[name] is not None]
    for position, contender in enumerate(names):
        figures = run['contenders'][contender]
        height = figures[name] / scale
        axes.bar(position, height, color=COLOURS.get(contender))
        top = height
        if spread and figures['fastest_s'] is not None:
            low, top = min(height, figures['fastest_s']), max(height, figures['slowest_s'])
            axes.errorbar(position, height, [[height - low], [top - height]], color='black', capsize=4)
        axes.annotate('%.3g' % height, (position, top), ha='center', va='bottom')
    if run['bound'] and run['bound'][name]:
        axes.axhline(run['bound'][name] / scale, color=BOUND, linestyle='--', label='lower bound')
        axes.legend()
    axes.set_xticks(range(len(names)))
    axes.set_xticklabels(names, rotation=20)
    axes.set_ylabel(label)


def _curve(axes: Any, runs: List[Dict[str, Any]]) -> None:
    names = list(runs[0]['contenders'])
    runs = [run for run in runs if run['mbit'] == runs[0]['mbit']]  # of several rates the first
    for name in names:
        points = [(run['hosts'], run['contenders'][name]['per_s']) for run in runs if name in run['contenders']]
        axes.plot(*zip(*points), marker='o', label=name, color=COLOURS.get(name))
    points = [(run['hosts'], run['bound']['per_s']) for run in runs
              if run['bound'] and run['bound']['per_s']]
    if points:
        axes.plot(*zip(*points), linestyle='--', color=BOUND, label='lower bound')
    axes.set_xlabel('hosts, %d workers on each' % runs[0]['workers'])
    axes.set_xticks([run['hosts'] for run in runs])
    axes.set_ylabel('%s per second' % runs[0]['unit'])
    axes.set_ylim(bottom=0)
    axes.legend()
