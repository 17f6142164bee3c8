"""Figures of training: throughput and bytes over hosts, and loss over time, from a result of training workloads."""
import os
import textwrap
from typing import Any, Callable, Dict, List

import numpy as np

from mxhybrid.base.figures import new_figure, save_figure

from .plot import BOUND, COLOURS
from .report import MB

#: Steps whose mean loss is drawn.
_SMOOTHED = 10


def draw_training(result: Dict[str, Any], file: str) -> List[str]:
    """Draw a result into files that are named like `file`, with -hosts, -bytes or -loss before the ending; return them.

    Several numbers of hosts give throughput and bytes over hosts, one number gives the loss over time.
    """
    import matplotlib

    stem, ending = os.path.splitext(file)
    runs, written = result['runs'], []
    several = len({run['hosts'] for run in runs}) > 1
    drawers: Dict[str, Callable[..., None]] = {'hosts': _throughput, 'bytes': _bytes} if several else {'loss': _losses}
    # Text stays text, and equal figures have equal files.
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': 'mxhybrid', 'font.size': 9}):
        for name, drawer in drawers.items():
            links = list(dict.fromkeys(run['mbit'] for run in runs))
            figure = new_figure(5.5 * len(links) + 1.5, 4.4)
            for position, mbit in enumerate(links):
                axes = figure.add_subplot(1, len(links), position + 1)
                own = [run for run in runs if run['mbit'] == mbit]
                drawer(axes, own, result['settings'])
                link = 'no network' if mbit is None else '%g Mbit/s' % mbit
                axes.set_title('%s, %s' % (result['settings']['workload'], link))
            axes.legend(fontsize='small')
            footer = textwrap.fill(_footer(result), 110 * len(links))
            figure.subplots_adjust(bottom=0.1)
            figure.text(0.01, -0.02, footer, fontsize=7, va='top')
            _save(figure, '%s-%s%s' % (stem, name, ending))
            written.append('%s-%s%s' % (stem, name, ending))
    return written


def _save(figure: Any, file: str) -> None:
    import matplotlib

    with matplotlib.rc_context({'savefig.bbox': 'tight'}):
        save_figure(figure, file)


def _footer(result: Dict[str, Any]) -> str:
    """Return the hardware, the emulation, the command and the spread of a result."""
    settings, runs = result['settings'], result['runs']
    share = '' if settings['share'] is None else ', each host limited to %g of a core' % settings['share']
    hosts = 'plain processes' if settings['no_network'] else 'hosts emulated by network namespaces and tc tbf' + share
    return ('%s. %d cores of %s, %s. Medians of %d rounds, contenders in turn; bars from the slowest to the fastest '
            'round; load of the machine before: %.1f. %s' % (
                runs[-1]['model'], settings['cores'], settings['processor'], hosts, settings['rounds'],
                settings['load_before'], settings['command']))


def _over_hosts(axes: Any, runs: List[Dict[str, Any]], value: Callable[[Dict[str, Any], Dict[str, Any]], Any]) -> None:
    """Draw a value of each round over the numbers of hosts: the median, and the extremes as bars."""
    for name in dict.fromkeys(name for run in runs for name in run['contenders']):
        points = []
        for run in runs:
            if name in run['contenders']:
                values = [value(run, one) for one in run['contenders'][name]['rounds']]
                points.append((run['hosts'], np.median(values), min(values), max(values)))
        hosts, middle, low, high = np.array(points).T
        axes.errorbar(hosts, middle, [middle - low, high - middle], marker='o', markersize=4, capsize=3, label=name,
                      color=COLOURS.get(name))
    axes.set_xscale('log', base=2)
    axes.set_xticks([run['hosts'] for run in runs])
    axes.set_xticklabels(['%d' % run['hosts'] for run in runs])
    axes.set_xlabel('hosts, %d worker%s on each' % (runs[0]['workers'], 's' * (runs[0]['workers'] > 1)))


def _throughput(axes: Any, runs: List[Dict[str, Any]], settings: Dict[str, Any]) -> None:
    _over_hosts(axes, runs, lambda run, one: run['units'] / one['step_s'])
    first = runs[0]
    best = max(figures['per_s'] for figures in first['contenders'].values()) / first['hosts']
    hosts = [run['hosts'] for run in runs]
    axes.plot(hosts, [best * count for count in hosts], '--', color=BOUND, label='ideal')
    axes.set_yscale('log', base=2)
    axes.yaxis.set_major_formatter('{x:g}')
    axes.set_ylabel('%s a second' % first['unit'])


def _bytes(axes: Any, runs: List[Dict[str, Any]], settings: Dict[str, Any]) -> None:
    runs = [run for run in runs if run['hosts'] > 1]
    _over_hosts(axes, runs, lambda run, one: one['sent'] / MB)
    axes.set_ylabel('MB that the busiest host sends in a step')
    axes.set_ylim(bottom=0)


def _losses(axes: Any, runs: List[Dict[str, Any]], settings: Dict[str, Any]) -> None:
    for name, figures in runs[0]['contenders'].items():
        for number, one in enumerate(figures['rounds']):
            losses = one['losses'][settings['warmup']:]
            count = min(_SMOOTHED, len(losses))
            smooth = np.convolve(losses, np.full(count, 1 / count), 'valid')
            axes.plot(np.cumsum(one['steps_s'])[count - 1:], smooth, color=COLOURS.get(name), alpha=0.8,
                      label='' if number else name)
    axes.set_xlabel('seconds of training, %d hosts x %d workers' % (runs[0]['hosts'], runs[0]['workers']))
    axes.set_ylabel('loss, mean of %d steps' % _SMOOTHED)
