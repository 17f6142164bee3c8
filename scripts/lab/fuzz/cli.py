"""The command line of all fuzzers."""
import argparse
import sys
import time
from typing import List, Optional

from . import messages, runner
from .networks.session import NetworkSession
from .session import SCRIPTS, Session, tell
from .tables import TABLES


def _ranks(text: str) -> List[int]:
    ranks = [int(rank) for rank in text.split(',')]
    if min(ranks) < 2:
        raise argparse.ArgumentTypeError('%s: give numbers of at least 2, as 2,3,4' % text)
    return ranks


def parse(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog='scripts/fuzz', formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description='Draw training programs, run each in a job and in one process with MXNet alone, and compare what '
                    'they have after every event. A failing program is made small and written as a script.')
    add = parser.add_argument
    add('kind', nargs='?', choices=['tables', 'networks'],
        help='programs with dynamic tables, or networks that are split, whose outputs, gradients, weights and running '
             'averages are compared')
    add('--programs', type=int, default=100, help='number of programs')
    add('--first', type=int, default=0, metavar='SEED', help='seed of the first; the others follow')
    add('--seed', type=int, help='run this program by itself')
    add('--messages', type=float, metavar='MINUTES',
        help='in place of programs, fuzz the messages between hosts for this time; needs clang++')
    networks = parser.add_argument_group('networks')
    networks.add_argument('--ranks', type=_ranks, default='2,3,4', help='numbers of workers, used in turn')
    networks.add_argument('--dtype', choices=('both', 'float64', 'float32'), default='both',
                          help='type; with both, the seed decides, and two of five networks have float32')
    networks.add_argument('--operators', action='store_true',
                          help='list how often each operator was drawn, and operators that never are, with reasons')
    return parser.parse_args(argv)



def main(argv: Optional[List[str]] = None) -> int:
    """Run programs; status 1 if any failed."""
    args = parse(argv)
    if args.messages is not None:
        return messages.run(args.messages, SCRIPTS)
    if args.kind == 'networks':
        session: Session = NetworkSession(args.ranks, args.dtype, args.operators)
    else:
        session = Session(TABLES if args.kind else runner.PLAIN)
    began = time.monotonic()
    try:
        session.run_all([args.seed] if args.seed is not None else list(range(args.first, args.first + args.programs)))
    except KeyboardInterrupt:
        sys.stderr.write('interrupted\n')
        return 130
    finally:
        session.close()
        tell(session.summary(time.monotonic() - began))
    return int(bool(session.findings))
