"""The partition file: keeps the partition counts that a search found; :mod:`mxhybrid.commands.partitions` shows it.

A JSON object, written by worker 0 whenever a table's search ends::

    {"format": 1, "workers": 4, "servers": 2, "tables": {"net_words_weight": {
        "shape": [10000, 16], "dtype": "float32", "partitions": 4, "start": 2, "finished": true,
        "reason": "why the search ended", "samples": [[partitions, seconds a step], ...],
        "theta": [constant, shared, each]}},
     "seconds_before": ..., "seconds_after": ..., "lost": ..., "budget": ...}

``theta`` is the fit of :mod:`mxhybrid.routes.partition_search`, null where there were too few samples.  All times are
in seconds.
"""
import json
import math
from typing import Any, Dict, List, Optional, Tuple

from ..base import json_text
from ..base.errors import InputError
from ..base.files import write_atomically
from .partition_search import Candidate, Tuning, fit

FORMAT = 1


def record(tuning: Tuning, ended: List[Candidate], shapes: Dict[str, Tuple[List[int], str]],
           unsearched: Dict[str, Dict[str, Any]], workers: int, servers: int) -> Dict[str, Any]:
    """Return the content of the file.

    `ended` are the tables whose search has ended, `shapes` has their shapes and dtypes by name, and `unsearched` has
    the entries of tables that need no search.
    """
    tables = dict(unsearched)
    for table in ended:
        samples = table.search.samples
        model = fit(samples)
        tables[table.name] = {
            'shape': shapes[table.name][0], 'dtype': shapes[table.name][1], 'partitions': table.count,
            'start': table.search.start, 'finished': table.finished, 'reason': table.reason,
            'samples': [[count, samples[count]] for count in sorted(samples)],
            'theta': None if model is None else [model.constant, model.shared, model.each]}
    return {'format': FORMAT, 'workers': workers, 'servers': servers, 'tables': tables,
            'seconds_before': tuning.budget.step, 'seconds_after': tuning.seconds,
            'lost': tuning.budget.lost, 'budget': tuning.budget.total}


def write(path: str, content: Dict[str, Any]) -> None:
    """Replace the file in one go."""
    write_atomically(path, (json.dumps(content, indent=1) + '\n').encode())


def read(path: str) -> Optional[Dict[str, Any]]:
    """Return the contents of a partition file, None if there is no file.

    Raises InputError if the file cannot be read or is no partition file.
    """
    try:
        with open(path, 'rb') as handle:
            content = json_text.parse(handle.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError('%s cannot be read: %s: give another name of a partition file, or remove the file'
                         % (path, error)) from error
    if not isinstance(content, dict) or content.get('format') != FORMAT:
        raise InputError('%s is not a partition file of format %d: give another file name, or remove the file'
                         % (path, FORMAT))
    tables = content.get('tables')
    if not isinstance(tables, dict) or not all(_is_entry(entry) for entry in tables.values()):
        raise InputError('%s is a partition file with invalid tables: remove it, so that the search begins again'
                         % path)
    if not (all(_is_positive(content.get(name)) for name in ('workers', 'servers'))
            and all(_is_number(content.get(name)) for name in ('seconds_before', 'seconds_after', 'lost', 'budget'))):
        raise InputError('%s is a partition file with invalid numbers: remove it, so that the search begins again'
                         % path)
    return content


def _is_positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_entry(entry: Any) -> bool:
    return (isinstance(entry, dict) and isinstance(entry.get('shape'), list)
            and all(isinstance(entry.get(name), str) for name in ('dtype', 'reason'))
            and all(_is_positive(entry.get(name)) for name in ('partitions', 'start'))
            and isinstance(entry.get('finished'), bool) and isinstance(entry.get('samples'), list)
            and all(isinstance(sample, list) and len(sample) == 2 and _is_positive(sample[0]) and _is_number(sample[1])
                    for sample in entry['samples'])
            and (entry.get('theta') is None or isinstance(entry['theta'], list) and len(entry['theta']) == 3
                 and all(map(_is_number, entry['theta']))))


def misfit(content: Dict[str, Any], workers: int, servers: int) -> str:
    """Return why the contents do not fit a job, '' if they do."""
    for role, count in (('workers', workers), ('servers', servers)):
        if content.get(role) != count:
            return 'it is for %s %s, this job has %d' % (content.get(role), role, count)
    return ''


def table_misfit(content: Dict[str, Any], name: str, shape: List[int], dtype: str) -> str:
    """Return why the contents do not fit a table, '' if they do."""
    entry = content['tables'].get(name)
    if entry is None:
        return 'it has no table %s, only %s' % (name, ', '.join(sorted(content['tables'])) or 'none')
    if (entry['shape'], entry['dtype']) != (shape, dtype):
        return 'its table %s is %s %s, not %s %s' % (name, entry['shape'], entry['dtype'], shape, dtype)
    return ''
