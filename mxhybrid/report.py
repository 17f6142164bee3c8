"""The plan table: which way every parameter goes and what that moves."""
from dataclasses import dataclass
from typing import Any, List

#: Steps after which rank 0 prints the plan, once.
PRINT_AFTER_STEPS = 3

#: Step at which it is printed although parameters were not pushed equally often.
PRINT_AT_STEP = 20


@dataclass
class Traffic:
    """What one parameter has moved on this worker.

    Attributes
    ----------
    steps : int
        Pushes so far.
    rows : int
        Rows in those pushes.
    pushed, pulled : int
        Bytes sent and received, for tables with 12 bytes of ps-lite overhead a row, for allreduce as a ring
        moves them: 2 (N - 1) / N times the size.
    """

    steps: int = 0
    rows: int = 0
    pushed: int = 0
    pulled: int = 0

    def add(self, steps: int = 1, rows: int = 0, pushed: int = 0, pulled: int = 0) -> None:
        """Count one call."""
        self.steps += steps
        self.rows += rows
        self.pushed += pushed
        self.pulled += pulled


def size(count: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ('B', 'kB', 'MB', 'GB'):
        if count < 1000 or unit == 'GB':
            return '%.0f %s' % (count, unit) if unit == 'B' else '%.1f %s' % (count, unit)
        count /= 1000.0
    raise AssertionError


def table(head: List[str], rows: List[List[str]]) -> str:
    """Align columns: the first left, numbers right."""
    widths = [max(len(line[column]) for line in [head] + rows) for column in range(len(head))]
    lines = []
    for line in [head, ['-' * width for width in widths]] + rows:
        cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        lines.append('  '.join(cells).rstrip())
    return '\n'.join(lines)


def plan(job: Any, routes: List[Any]) -> str:
    """The table that :meth:`Hybrid.report` gives.

    Parameters
    ----------
    job : Job
    routes : list of Route
    """
    rows = []
    for route in routes:
        traffic = route.traffic
        steps = max(1, traffic.steps)
        held = getattr(route.table, 'partitioning', None)
        rows.append([route.name, 'x'.join(map(str, route.shape)), route.kind,
                     str(held.count) if held else '-',
                     ','.join(map(str, sorted(set(held.servers)))) if held else '-',
                     'all' if route.kind == 'allreduce' else '%.0f' % (traffic.rows / steps),
                     size(traffic.pushed / steps), size(traffic.pulled / steps)])
    if not job.num_servers:
        title = "mxhybrid: one process, MXNet's own store does the work and nothing is sent"
        return title + '\n' + table(['parameter', 'shape', 'route'], [row[:3] for row in rows])
    steps = max([route.traffic.steps for route in routes] or [0])
    hosts = len(set(job.hosts))
    title = ('mxhybrid: %d worker%s on %d host%s, %d server%s; averages over %d steps of rank %d'
             % (job.num_workers, 's' * (job.num_workers != 1), hosts, 's' * (hosts != 1),
                job.num_servers, 's' * (job.num_servers != 1), steps, job.rank))
    changed = sorted({'%s travels as %s' % (route.dtype, route.wire) for route in routes if route.wire != route.dtype})
    title = '; '.join([title] + changed)
    head = ['parameter', 'shape', 'route', 'partitions', 'servers', 'rows/step', 'pushed/step', 'pulled/step']
    return '\n'.join([title, table(head, rows)] + choices(routes))


def choices(routes: List[Any]) -> List[str]:
    """A second table, of the numbers that chose routes: its parts, none where none was chosen."""
    rows = []
    for route in routes:
        choice = getattr(route, 'choice', None)
        if choice is None or choice.because == 'small':
            continue
        cells = ['-'] * 6
        if choice.estimate is not None:
            predicted = choice.estimate
            cells = ['%.3g%%' % (100 * choice.touched), '%.3g%%' % (100 * choice.union),
                     size(predicted.servers_bytes), size(predicted.allreduce_bytes),
                     '%.1f ms' % (1e3 * predicted.servers_s), '%.1f ms' % (1e3 * predicted.allreduce_s)]
        rows.append([route.name] + cells + [choice.way, choice.because])
    head = ['table', 'rows by one', 'rows by all', 'bytes by servers', 'by allreduce', 'time by servers',
            'by allreduce', 'goes by', 'because']
    title = 'tables that were weighed or forced; per step, bytes in and out of the busiest host'
    return ['', title, table(head, rows)] if rows else []
