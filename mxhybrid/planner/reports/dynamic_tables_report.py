"""The report of the dynamic tables of a script: bytes on servers and workers, and the assumptions."""
from typing import Callable, List, Sequence

from ...base.text import aligned, size_text
from ..cluster.cluster_spec import Cluster
from ..task_graph.dynamic_tables import DynamicTable

#: The number of rows for which the bytes of a table of any size are shown.
_SAMPLE_ROWS = 1_000_000


def dynamic_tables_report(tables: Sequence[DynamicTable], cluster: Cluster, states: int, max_batch_rows: int,
                          storage: Callable[[str], str]) -> str:
    """Return a table with the bytes of dynamic tables, and the assumptions; '' without tables.

    Parameters
    ----------
    tables : sequence of DynamicTable
    states : int
        The number of arrays of optimizer state.
    max_batch_rows : int
        The setting `max_batch_rows`.
    storage : callable
        Returns the directory with the rows of a table, by its name; '' for memory.
    """
    if not tables:
        return ''
    hosts, rows, notes = len(cluster.hosts), [], []
    memory_bytes = 0.0
    for table in tables:
        batch_rows, most_rows = float(table.batch_rows().max()), table.most_rows
        server_rows = _SAMPLE_ROWS if most_rows is None else most_rows
        host_bytes = server_rows * table.server_row_bytes(states) / hosts
        directory = storage(table.name)
        memory_bytes += 0.0 if directory else host_bytes
        rows.append([table.name, str(table.rows) if table.rows else 'any', str(table.width), '%.0f' % batch_rows,
                     size_text(float(table.worker_bytes().max())), _rows_text(table), size_text(host_bytes),
                     directory or 'memory'])
        if batch_rows > max_batch_rows:
            notes.append('%s: a batch of a worker may have %.0f distinct rows, but max_batch_rows allows %d: raise '
                         'max_batch_rows' % (table.name, batch_rows, max_batch_rows))
    notes += _memory_notes(tables, cluster, memory_bytes)
    assumptions = ['assumed: no id occurs twice in a batch; servers have one partition of each table on each host; the '
                   'optimizer keeps %d array%s of state' % (states, 's' * (states != 1))]
    if any(table.most_rows is None for table in tables):
        assumptions.append('rows of tables with any number of keys are not known: bytes are those of %d rows'
                           % _SAMPLE_ROWS)
    head = ['dynamic table', 'keys', 'width', 'rows/batch', 'bytes/worker', 'rows', 'bytes/host', 'in']
    return '\n'.join([aligned(head, rows), *assumptions, *notes])


def _rows_text(table: DynamicTable) -> str:
    """Return the bound of a table's rows, and its reason."""
    if table.most_rows is None:
        return 'per %d' % _SAMPLE_ROWS
    return '%d, %s' % (table.most_rows, 'capacity' if table.most_rows == table.capacity else 'if all are updated')


def _memory_notes(tables: Sequence[DynamicTable], cluster: Cluster, memory_bytes: float) -> List[str]:
    """Return a line if the rows in memory may take more than a host has."""
    known = [host.memory_bytes for host in cluster.hosts if host.memory_bytes is not None]
    if not known or memory_bytes <= min(known):
        return []
    return ['rows in memory may take %s on each host, but one has %s: give tables a capacity, or keep rows in files by '
            'the setting storage' % (size_text(memory_bytes), size_text(min(known)))]
