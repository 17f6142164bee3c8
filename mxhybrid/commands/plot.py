"""Show what a search for partition counts (partitions='auto') found.

FILE is what a job with MXHYBRID_PLAN_FILE=FILE has written.  Prints samples and the count taken for each table; with
PICTURE it draws samples and fit.
"""
import argparse
import sys

from ..errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say which arguments there are."""
    parser.add_argument('file', metavar='FILE', help='the plan file')
    parser.add_argument('picture', metavar='PICTURE', nargs='?',
                        help='image file to draw samples and fit into, for example plan.png; needs matplotlib')


def run(given: argparse.Namespace) -> int:
    """Show the plan; returns the exit status."""
    try:
        from ..plot import show  # needs NumPy

        show(given.file, given.picture)
    except (ImportError, InputError) as error:
        sys.stderr.write('mxhybrid plot: %s\n' % error)
        return 1
    return 0


if __name__ == '__main__':
    from .main import run_alone

    sys.exit(run_alone('plot'))
