"""The former name of ``mxhybrid partitions``, which works for one more release."""
import argparse
import sys

from . import partitions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    partitions.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Show the partition file, with a warning that names the new command; returns the exit status."""
    sys.stderr.write("mxhybrid plot: this command is now called 'mxhybrid partitions': use that name, the former one "
                     'works for one more release\n')
    return partitions.run(options)


if __name__ == '__main__':
    from .main import run_alone

    sys.exit(run_alone('plot'))
