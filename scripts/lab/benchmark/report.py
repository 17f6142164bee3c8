"""Turns the readings of workers into figures for each contender, a table for people and a JSON file for programs.

The JSON file holds ``settings``, the machine among them, and ``runs``, one for each number of hosts::

    {"hosts": 8, "workers": 6, "unit": "words", "bound": {...}, "skipped": {contender: reason},
     "contenders": {contender: {"step_s": ..., "fastest_s": ..., "slowest_s": ..., "per_s": ..., "sent": ...,
                                "received": ..., "cpu_s": ..., "busy_s": ..., "ratio": ..., "phases": {...},
                                "rounds": [...]}}}

Seconds and bytes are per step; bytes are those of the busiest host, None where nothing counts them. `phases` are the
means over workers of the time that stores take to answer a look-up, to take gradients over, and until all dense sums
are there.
"""
from statistics import mean, median
from typing import Any, Dict, List, Optional, Sequence

from .bounds import Bound

MB = 1e6

#: Share of the cores' time above which they, and not the link, are taken to set the pace.
_BUSY = 0.8


def one_round(readings: List[Dict[str, Any]], steps: int) -> Dict[str, Any]:
    """Return the figures of a job whose windows have a number of steps.

    The readings of each worker, by rank: `seconds` between the barriers, the median of its windows; `ends` of each step
    of the last window since its first barrier; `phases` of all its steps together; `used`, the share of a window in the
    growth of the kernel's counters.
    """
    ends = [0.0] + readings[0]['ends']
    hosts = [{name: reading['used'][name] / steps for name in ('sent', 'received')}
             for reading in readings if 'sent' in reading['used']]
    return {'step_s': max(reading['seconds'] for reading in readings) / steps,
            'steps_s': [end - start for start, end in zip(ends, ends[1:])],
            'sent': max((host['sent'] for host in hosts), default=None),
            'received': max((host['received'] for host in hosts), default=None),
            'cpu_s': readings[0]['used']['cpu'] / steps, 'busy_s': readings[0]['used']['busy'] / steps,
            'hosts': hosts,
            'phases': {name: mean(reading['phases'][name] for reading in readings) / steps
                       for name in readings[0]['phases']}}


def over_rounds(rounds: List[Dict[str, Any]], units: int) -> Dict[str, Any]:
    """Return the figures of a contender over all its jobs, from those of `one_round` and the units of a step."""
    every_step = [seconds for round_figures in rounds for seconds in round_figures['steps_s']]
    step_s = median(round_figures['step_s'] for round_figures in rounds)
    figures: Dict[str, Any] = {'step_s': step_s, 'fastest_s': min(every_step, default=None),
                               'slowest_s': max(every_step, default=None), 'per_s': units / step_s}
    for name in ('sent', 'received', 'cpu_s', 'busy_s'):
        values = [round_figures[name] for round_figures in rounds]
        figures[name] = None if None in values else median(values)
    figures['phases'] = {name: median(round_figures['phases'][name] for round_figures in rounds)
                         for name in rounds[0]['phases']}
    figures['rounds'] = rounds
    return figures


def add_ratios(contenders: Dict[str, Dict[str, Any]]) -> None:
    """Add to each contender the ratio of its step to that of `hybrid`; None without `hybrid`."""
    hybrid = contenders.get('hybrid')
    for figures in contenders.values():
        figures['ratio'] = figures['step_s'] / hybrid['step_s'] if hybrid else None


def bound_row(bound: Bound, units: int) -> Dict[str, Any]:
    """The lower bound in the form of a contender's figures."""
    seconds = bound.seconds or None
    return {'step_s': seconds, 'per_s': units / seconds if seconds else None, 'sent': bound.sent,
            'received': bound.received, 'rows_per_host': bound.rows}


_COLUMNS = (
    ('s/step', lambda row: _number(row.get('step_s'), '%.3f')),
    ('fastest-slowest', lambda row: '-' if row.get('fastest_s') is None else '%.3f-%.3f' % (row['fastest_s'],
                                                                                          row['slowest_s'])),
    ('{unit}/s', lambda row: _number(row.get('per_s'), '%.0f')),
    ('sent MB', lambda row: _number(row.get('sent'), '%.2f', MB)),
    ('received MB', lambda row: _number(row.get('received'), '%.2f', MB)),
    ('CPU s', lambda row: _number(row.get('cpu_s'), '%.2f')),
    ('x hybrid', lambda row: _number(row.get('ratio'), '%.2f')))


def _number(value: Optional[float], form: str, scale: float = 1.0) -> str:
    return '-' if value is None else form % (value / scale)


def table(run: Dict[str, Any]) -> str:
    """The aligned table of one run."""
    heads = [width_text(run)] + [head.format(unit=run['unit']) for head, _ in _COLUMNS]
    lines = [[name] + [cell(figures) for _, cell in _COLUMNS] for name, figures in run['contenders'].items()]
    if run['bound']:
        lines.append(['lower bound'] + [cell(run['bound']) for _, cell in _COLUMNS])
    return align([heads] + lines)


def width_text(run: Dict[str, Any]) -> str:
    """The head of the first column: the width of the model, unless it is the published one."""
    return '' if run.get('width', 1) == 1 else 'width %g' % run['width']


def grid(runs: List[Dict[str, Any]]) -> str:
    """Summarize the runs: a line for each, with the seconds and CPU seconds of each contender."""
    names = list(dict.fromkeys(name for run in runs for name in run['contenders']))
    lines = [[', '.join(filter(None, ('hosts', width_text(runs[0])))), 'Mbit/s'] + names + ['lower bound']]
    for run in runs:
        fastest = min(figures['step_s'] for figures in run['contenders'].values())
        cells = []
        for name in names:
            figures = run['contenders'].get(name)
            cells.append('-' if figures is None else '%s%.3f (%.2f)' % (
                '*' if figures['step_s'] == fastest else '', figures['step_s'], figures['cpu_s'] or 0))
        bound = run['bound'] and run['bound']['step_s']
        lines.append([str(run['hosts']), _number(run['mbit'], '%g')] + cells + [_number(bound or None, '%.3f')])
    return align(lines)


def align(lines: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right, a rule below the first line."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [[cell.rjust(width) if column else cell.ljust(width)
             for column, (cell, width) in enumerate(zip(line, widths))] for line in lines]
    text.insert(1, ['-' * width for width in widths])
    return '\n'.join('  '.join(line).rstrip() for line in text)


def explain(run: Dict[str, Any], settings: Dict[str, Any]) -> List[str]:
    """Sentences that a reader of the table needs."""
    sentences = ['%s left out: %s' % item for item in run['skipped'].items()]
    for name, figures in run['contenders'].items():
        if figures['phases']:
            sentences.append('a worker of %s waits per step for: %s' % (name, ', '.join(
                '%s %.3f s' % item for item in figures['phases'].items())))
    cores = settings['cores']
    for name, figures in run['contenders'].items():
        if figures['busy_s'] is not None and figures['busy_s'] > _BUSY * cores * figures['step_s']:
            others = max(0.0, figures['busy_s'] - figures['cpu_s'])
            sentences.append('the %d cores of this machine were busy for over %d%% of the time of %s, not waiting for '
                             'the link; per step, its processes took %.2f s of CPU, the kernel\'s network and other '
                             'programs %.2f s' % (cores, 100 * _BUSY, name, figures['cpu_s'], others))
    return sentences
