"""A picture of the figures: bars for the last number of hosts, a curve over all of them."""
from importlib.util import find_spec
from typing import Any, Dict, List

from .report import MB

_COLOURS = {'hybrid': '#c0392b', 'hybrid_prefetch': '#8e2b20', 'hybrid_float16': '#e8998d', 'dist_sync': '#7f8c8d',
            'horovod_gather': '#2980b9', 'horovod_dense': '#8fb8d8', 'torch_sharded': '#e67e22'}
_BOUND = '#2c3e50'


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec('matplotlib') is not None


def draw(result: Dict[str, Any], file: str) -> None:
    """Draw a result, as `cli` writes it to JSON, into a PNG file."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    runs, settings = result['runs'], result['settings']
    curve, last = len(runs) > 1, runs[-1]
    figure, axes = pyplot.subplots(1, 3 if curve else 2, figsize=(15 if curve else 10, 4.5))
    _bars(axes[0], last, 'step_s', 1, 'seconds per step', spread=True)
    _bars(axes[1], last, 'sent', MB, 'MB sent by the busiest host per step')
    if curve:
        _curve(axes[2], runs)
    link = 'no network' if last['mbit'] is None else '%g Mbit/s links' % last['mbit']
    figure.suptitle('%s: %d hosts x %d workers, %s; %s'
                    % (settings['workload'], last['hosts'], last['workers'], link, last['model']))
    figure.tight_layout()
    figure.savefig(file, dpi=120, format='png')
    pyplot.close(figure)


def _bars(axes: Any, run: Dict[str, Any], name: str, scale: float, label: str, spread: bool = False) -> None:
    names = [contender for contender, figures in run['contenders'].items() if figures[name] is not None]
    for place, contender in enumerate(names):
        figures = run['contenders'][contender]
        height = figures[name] / scale
        axes.bar(place, height, color=_COLOURS.get(contender))
        top = height
        if spread and figures['fastest_s'] is not None:
            low, top = min(height, figures['fastest_s']), max(height, figures['slowest_s'])
            axes.errorbar(place, height, [[height - low], [top - height]], color='black', capsize=4)
        axes.annotate('%.3g' % height, (place, top), ha='center', va='bottom')
    if run['bound'] and run['bound'][name]:
        axes.axhline(run['bound'][name] / scale, color=_BOUND, linestyle='--', label='lower bound')
        axes.legend()
    axes.set_xticks(range(len(names)))
    axes.set_xticklabels(names, rotation=20)
    axes.set_ylabel(label)


def _curve(axes: Any, runs: List[Dict[str, Any]]) -> None:
    names = list(runs[0]['contenders'])
    runs = [run for run in runs if run['mbit'] == runs[0]['mbit']]  # of several rates the first
    for name in names:
        points = [(run['hosts'], run['contenders'][name]['per_s']) for run in runs if name in run['contenders']]
        axes.plot(*zip(*points), marker='o', label=name, color=_COLOURS.get(name))
    points = [(run['hosts'], run['bound']['per_s']) for run in runs
              if run['bound'] and run['bound']['per_s']]
    if points:
        axes.plot(*zip(*points), linestyle='--', color=_BOUND, label='lower bound')
    axes.set_xlabel('hosts, %d workers on each' % runs[0]['workers'])
    axes.set_xticks([run['hosts'] for run in runs])
    axes.set_ylabel('%s per second' % runs[0]['unit'])
    axes.set_ylim(bottom=0)
    axes.legend()
