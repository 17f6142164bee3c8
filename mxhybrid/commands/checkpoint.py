"""Merge the deltas of a checkpoint.

compact DIRECTORY replaces the newest checkpoint, a delta, by a whole one with the same content, and removes the base
and the deltas that no other checkpoint builds on.  A job may save to the directory at the same time.  The command
needs as much free space as the whole checkpoint takes.
"""
import argparse
import sys
from typing import Any

from ..base.errors import HybridError
from . import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('action', choices=['compact'], help='merge a base and its deltas')
    parser.add_argument('directory', metavar='DIRECTORY', help='the directory of checkpoints')


def run(options: argparse.Namespace) -> int:
    """Compact the newest checkpoint; returns the exit status."""
    try:
        from tqdm import tqdm

        from ..checkpoint.compaction import compact  # needs NumPy

        with tqdm(desc='compact', unit=' rows', unit_scale=True, disable=None, leave=False) as bar:
            def show(name: str, rows: int) -> Any:
                bar.set_postfix_str(name, refresh=False)
                bar.update(rows)

            path = compact(options.directory, show)
        if path is None:
            path = 'the newest checkpoint of %s is whole: nothing to do' % options.directory
        console.write(path)
    except (ImportError, HybridError) as error:
        sys.stderr.write('mxhybrid checkpoint: %s\n' % error)
        return 1
    return 0


if __name__ == '__main__':
    from .main import run_alone

    sys.exit(run_alone('checkpoint'))
