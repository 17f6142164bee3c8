"""Merge the deltas of a checkpoint, or write its tables to files for other programs.

compact DIRECTORY replaces the newest checkpoint, a delta, by a whole one with the same content, and removes the base
and the deltas that no other checkpoint builds on.  A job may save to the directory at the same time.  The command
needs as much free space as the whole checkpoint takes.

export DIRECTORY TABLE --to npy --output NEW writes the tables whose names match TABLE to files that other programs can
read, sorted by key.
"""
import argparse
import sys
from typing import Any

from ..base.errors import InputError
from . import console
from .main import run_alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest='action', metavar='ACTION')
    actions.required = True
    compacting = actions.add_parser('compact', help='merge a base and its deltas')
    compacting.add_argument('directory', metavar='DIRECTORY', help='the directory of checkpoints')
    exporting = actions.add_parser('export', help='write tables to files for other programs')
    exporting.add_argument('directory', metavar='DIRECTORY', help='the directory of checkpoints, or one checkpoint')
    exporting.add_argument('table', metavar='TABLE', help="the name of a table, or a pattern: 'users*'")
    exporting.add_argument('--to', choices=['npy', 'parquet', 'safetensors'], default='npy',
                           help='the format (default %(default)s)')
    exporting.add_argument('--output', metavar='NEW', required=True, help='a directory that does not exist yet')
    exporting.add_argument('--dtype', choices=['float32', 'float16', 'int8'], default=None,
                           help='the type of the rows; int8 has a scale for each row (default: as trained)')
    exporting.add_argument('--no-state', action='store_true', help='leave out optimizer state')


def run(options: argparse.Namespace) -> int:
    try:
        from tqdm import tqdm

        from ..checkpoint.compaction import compact  # needs NumPy
        from ..checkpoint.exporting import export
    except ImportError as error:
        raise InputError(str(error)) from error
    with tqdm(desc=options.action, unit=' rows', unit_scale=True, disable=None, leave=False) as bar:
        def show(name: str, rows: int) -> Any:
            bar.set_postfix_str(name, refresh=False)
            bar.update(rows)

        if options.action == 'export':
            path = export(options.directory, options.output, options.table, to=options.to, dtype=options.dtype,
                          state=not options.no_state, progress=show)
        else:
            path = (compact(options.directory, show)
                    or 'the newest checkpoint of %s is whole: nothing to do' % options.directory)
    console.write(path)
    return 0


if __name__ == '__main__':
    sys.exit(run_alone('checkpoint'))
