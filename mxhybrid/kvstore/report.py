"""The route table: the route of every parameter, and the bytes that it moves."""
from typing import Any, List, Mapping, Tuple

from ..base.text import aligned, size_text
from ..telemetry.traffic import Network

#: Steps after which worker 0 prints the route table, once.
PRINT_AFTER_STEPS = 3
#: Step at which it is printed even if parameters were not pushed equally often.
PRINT_AT_STEP = 20


def route_rows(routes: List[Any]) -> Tuple[Tuple[str, ...], ...]:
    """Return name, shape, route, number of partitions and servers of each parameter."""
    rows = []
    for route in routes:
        partitioning = route.partitioning
        count = str(partitioning.count) if partitioning else '-'
        servers = ','.join(map(str, sorted(set(partitioning.servers)))) if partitioning else '-'
        rows.append((route.name, 'x'.join(map(str, route.shape)), route.kind, count, servers))
    return tuple(rows)


def steps_so_far(routes: List[Any]) -> int:
    """Return the number of steps so far: pushes of the parameter that was pushed most often."""
    return max([route.traffic.steps for route in routes] or [0])


def route_table(job: Any, routes: List[Any], network: Network, network_steps: int) -> str:
    """Return the text of :meth:`mxhybrid.kvstore.hybrid.Hybrid.report`.

    `network` has the bytes that this host has moved in `network_steps` steps.
    """
    rows = []
    for route, cells in zip(routes, route_rows(routes)):
        traffic = route.traffic
        steps = max(1, traffic.steps)
        rows.append(list(cells) + ['all' if route.all_rows else '%.0f' % (traffic.rows / steps),
                                   size_text(traffic.pushed / steps), size_text(traffic.pulled / steps)])
    if not job.num_servers:
        title = "mxhybrid: one process, MXNet's own store does the work and nothing is sent"
        return title + '\n' + aligned(['parameter', 'shape', 'route'], [row[:3] for row in rows])
    steps = steps_so_far(routes)
    hosts = len(set(job.topology.hosts))
    title = ('mxhybrid: %d worker%s on %d host%s, %d server%s; averages over %d steps of rank %d'
             % (job.num_workers, 's' * (job.num_workers != 1), hosts, 's' * (hosts != 1),
                job.num_servers, 's' * (job.num_servers != 1), steps, job.rank))
    changed = sorted({'%s travels as %s' % (route.dtype, route.wire_dtype)
                      for route in routes if route.wire_dtype != route.dtype})
    title = '; '.join([title, job.transports] + changed)
    head = ['parameter', 'shape', 'route', 'partitions', 'servers', 'rows/step', 'pushed/step', 'pulled/step']
    return '\n'.join([title, aligned(head, rows)] + _network_table(network, network_steps) + _rounding_table(routes)
                     + _choices_table(routes))


def dynamic_tables_table(tables: List[Tuple[Any, Mapping[str, int]]]) -> str:
    """Return the lines of a table of dynamic tables, of pairs of a table and its statistics; '' without tables.

    Statistics are {} on workers that cannot ask the servers.
    """
    rows = []
    for table, statistics in tables:
        param, traffic = table.param, table.traffic
        steps = max(1, traffic.steps)
        size = size_text(statistics['memory_bytes'] + statistics['file_bytes']) if statistics else '-'
        counts = [str(statistics[name]) if statistics else '-' for name in ('rows', 'admitted', 'waiting', 'expired')]
        requests = param.table.cache_counts()
        hits = '%.0f%%' % (100 * requests['cached'] / requests['requested']) if requests.get('requested') else '-'
        rows.append([table.name, 'any' if param.rows is None else str(param.rows), str(param.width), counts[0], size,
                     *counts[1:], str(param.table.partitions), hits, '%.0f' % (traffic.rows / steps),
                     size_text(traffic.pushed / steps), size_text(traffic.pulled / steps)])
    head = ['dynamic table', 'keys', 'width', 'rows so far', 'bytes', 'admitted', 'waiting', 'expired', 'partitions',
            'cache hits', 'rows/step', 'pushed/step', 'pulled/step']
    return aligned(head, rows) if rows else ''


def lags_table(tables: List[Tuple[str, Any]]) -> str:
    """Return the lines of a table of the staleness of pulled rows, of pairs of a name and a table; '' without any."""
    rows = []
    for name, table in tables:
        lags = table.lags()[:table.staleness + 1]
        pulled = sum(lags)
        if table.staleness:
            mean = sum(lag * count for lag, count in enumerate(lags)) / max(1, pulled)
            shares = ['%.0f%%' % (100 * count / max(1, pulled)) for count in lags]
            rows.append([name, str(table.staleness), str(pulled), '%.2f' % mean,
                         ', '.join('%d: %s' % pair for pair in enumerate(shares))])
    title = 'staleness of the rows that workers of this host pulled: last pushes of other workers that they lack'
    head = ['table', 'staleness', 'rows', 'mean', 'share of rows by pushes']
    return title + '\n' + aligned(head, rows) if rows else ''


def _network_table(network: Network, steps: int) -> List[str]:
    """Return the lines of a second table, of bytes over the network; none if there were no bytes."""
    total = {direction: sum(counts[direction] for counts in network.values()) for direction in ('sent', 'received')}
    if not steps or not any(total.values()):
        return []
    rows = [[kind] + [size_text(counts[direction] / steps) for direction in total]
            for kind, counts in {**network, 'all': total}.items()]
    title = 'between this host, with all its workers, and others; averages over %d step%s' % (steps,
                                                                                              's' * (steps != 1))
    return ['', title, aligned(['network', 'sent/step', 'received/step'], rows)]


def _rounding_table(routes: List[Any]) -> List[str]:
    """Return the lines of a table of the parameters whose values are rounded before they travel; none without any."""
    rows = []
    for route in routes:
        traffic = route.traffic
        if not traffic.saved:
            continue
        steps, moved = max(1, traffic.steps), traffic.pushed + traffic.pulled
        error = route.carried_error
        rows.append([route.name, str(route.wire_dtype), size_text(moved / steps), size_text(traffic.saved / steps),
                     '%.0f%%' % (100 * traffic.saved / (moved + traffic.saved)),
                     '-' if error is None else '%.2g%%' % (100 * error)])
    head = ['rounded', 'travels as', 'bytes/step', 'saved/step', 'saved', 'carried error']
    title = ('values that are rounded before they travel; carried error: the norm of what this host rounded off in the '
             'last dense sum and adds to the next one, relative to the norm of its gradients')
    return ['', title, aligned(head, rows)] if rows else []


def _choices_table(routes: List[Any]) -> List[str]:
    """Return the lines of a further table, of the numbers that chose routes; none if no route was chosen."""
    rows = []
    for route in routes:
        choice = route.choice
        if choice is None or choice.because == 'small':
            continue
        cells = ['-'] * 6
        if choice.estimate is not None:
            predicted = choice.estimate
            cells = ['%.3g%%' % (100 * choice.touched), '%.3g%%' % (100 * choice.union),
                     size_text(predicted.servers_bytes), size_text(predicted.allreduce_bytes),
                     '%.1f ms' % (1e3 * predicted.servers_s), '%.1f ms' % (1e3 * predicted.allreduce_s)]
        rows.append([route.name] + cells + [choice.route, choice.because])
    head = ['table', 'rows by one', 'rows by all', 'bytes by servers', 'by allreduce', 'time by servers',
            'by allreduce', 'travels by', 'because']
    title = 'tables that were weighed or forced; per step, bytes in and out of the busiest host'
    return ['', title, aligned(head, rows)] if rows else []
