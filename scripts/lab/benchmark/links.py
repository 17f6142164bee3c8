"""The use of each host's link over a step: samples of the counters of its port, figures and a picture.

A sampler runs in the namespace of the switch that joins the emulated hosts.  A port receives the bytes that its host
sends.
"""
import select
import sys
import time
from array import array
from bisect import bisect_right
from statistics import mean
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

from lab.files import replace_file

from .measuring import interface_bytes

#: Seconds between two samples.
INTERVAL_S = 0.01
#: A link is idle while it carries less than this share of its rate.
_IDLE = 0.1


class Samples(NamedTuple):
    """Times of CLOCK_MONOTONIC, and the bytes that each host had sent and received at each of them.

    Shapes: (samples,), (samples, hosts), (samples, hosts).
    """

    times: Any
    sent: Any
    received: Any


def sample(hosts: int, file: str) -> None:
    """Sample the ports of the switch until standard input ends; write times and counters to a file."""
    names = ['port%d' % host for host in range(hosts)]
    values = array('d')
    due = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        values.append(time.monotonic())
        counters = interface_bytes()
        for direction in (0, 1):
            values.extend(float(counters[name][direction]) for name in names)
        due = max(due + INTERVAL_S, time.monotonic())
    replace_file(file, values.tobytes())


def read(file: str, hosts: int) -> Samples:
    """Return the record that :func:`sample` wrote."""
    values = np.fromfile(file).reshape(-1, 1 + 2 * hosts)
    return Samples(values[:, 0], values[:, 1:1 + hosts], values[:, 1 + hosts:])


def use_of_step(samples: Samples, start: float, end: float, mbit: float) -> Dict[str, Any]:
    """Return the use of all links between two times: `seconds` since `start`, the middle of each interval; `sent` and
    `received`, the share of the rate that each host used in each interval (lists by host); and the `length`.
    """
    first, last = bisect_right(samples.times, start) - 1, bisect_right(samples.times, end)
    times = samples.times[max(0, first):last + 1]
    widths = np.diff(times)
    shares = [np.diff(counters[max(0, first):last + 1], axis=0).T * 8e-6 / mbit / widths
              for counters in (samples.sent, samples.received)]
    return {'seconds': list((times[:-1] + times[1:]) / 2 - start), 'sent': shares[0].tolist(),
            'received': shares[1].tolist(), 'length': end - start}


def describe(use: Dict[str, Any]) -> str:
    """Return a sentence about the use of the links in a step."""
    parts = []
    for direction in ('sent', 'received'):
        shares: Sequence[List[float]] = use[direction]
        idle = [mean(share < _IDLE for share in host) for host in shares]
        parts.append('%s %.0f %% of their rate (%.0f to %.0f %%), and %s nearly nothing in %.0f %% of the time' % (
            direction, 100 * mean(map(mean, shares)), 100 * min(map(mean, shares)), 100 * max(map(mean, shares)),
            direction, 100 * mean(idle)))
    return 'in a step of %.3f s the hosts %s' % (use['length'], '; '.join(parts))


def median_step(ends: Sequence[float]) -> int:
    """Return the number of the step of median length, given the ends of all steps, from the start of the first step on.
    """
    lengths = np.diff([0.0] + list(ends))
    return int(np.argsort(lengths, kind='stable')[len(lengths) // 2])


def draw(uses: Dict[str, Dict[str, Any]], file: str) -> None:
    """Draw the use of the links in a step of each contender into an image file."""
    from mxhybrid.base.figures import new_figure, save_figure

    hosts = len(next(iter(uses.values()))['sent'])
    figure = new_figure(6 * len(uses), 0.6 + 0.9 * hosts)
    for column, (name, use) in enumerate(uses.items()):
        for host in range(hosts):
            axes = figure.add_subplot(hosts, len(uses), host * len(uses) + column + 1)
            axes.fill_between(use['seconds'], use['sent'][host], step='mid', color='#c0392b', alpha=0.7)
            axes.fill_between(use['seconds'], [-share for share in use['received'][host]], step='mid',
                              color='#2980b9', alpha=0.7)
            axes.set(xlim=(0, use['length']), ylim=(-1.1, 1.1), yticks=(-1, 0, 1))
            axes.set_yticklabels(['100 %', '0', '100 %'], fontsize='x-small')
            axes.set_ylabel('host %s' % 'abcdefghijklmnopqrstuvwxyz'[host], fontsize='small')
            axes.tick_params(labelbottom=host == hosts - 1)
            if host == 0:
                axes.set_title('%s: sent (above) and received (below)' % name, fontsize='medium')
            if host == hosts - 1:
                axes.set_xlabel('seconds of a step')
    save_figure(figure, file)


if __name__ == '__main__':
    sample(int(sys.argv[1]), sys.argv[2])
