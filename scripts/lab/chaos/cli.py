"""The command line of the chaos suite."""
import argparse
import json
import signal
import sys
import time
from pathlib import Path

from lab.cluster import EmulatedCluster
from lab.files import replace_file

from .cases import CASES, select
from .runner import BODY, TABLE_BODY, run_case, train_alone


def parse(argv):
    """Read the command line."""
    parser = argparse.ArgumentParser(prog='scripts/chaos', description=(
        'Real jobs of 4 workers and 4 servers on 2 emulated hosts, each with a fault: does it end in time, say why, '
        'and leave nothing behind?'))
    parser.add_argument('--list', action='store_true', help='print the names of all cases and end')
    parser.add_argument('--only', action='append', default=[], metavar='PATTERN',
                        help="cases whose name matches, for example 'kill/server-*/*'; may be given more than once")
    parser.add_argument('--results', default='chaos.json', metavar='FILE',
                        help='outcomes, as JSON; cases that passed there are not run again (default: %(default)s)')
    parser.add_argument('--again', action='store_true', help='run all chosen cases, whatever FILE holds')
    return parser.parse_args(argv)


def write(path, outcomes):
    """Keep all outcomes, in the order of the cases."""
    order = {case.name: position for position, case in enumerate(CASES)}
    replace_file(path, json.dumps(dict(sorted(outcomes.items(), key=lambda item: order.get(item[0], -1))), indent=1))


def row(outcome):
    """Return a line of the table."""
    return '%-30s %-6s %6.1f  %-5s %-4s  %.110s' % (
        outcome['case'], outcome['status'], outcome['seconds'], 'right' if outcome['right'] else 'WRONG',
        len(outcome['left']) or '-', '; '.join(outcome['named']) or '-')


def main(argv=None):
    """Run the chosen cases; return status 1 if any failed."""
    args = parse(argv)
    chosen = select(args.only)
    if args.list:
        print('\n'.join(case.name for case in chosen))
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and remove all files and hosts
    path = Path(args.results)
    outcomes = json.loads(path.read_text()) if path.exists() else {}
    todo = [case for case in chosen if args.again or outcomes.get(case.name, {'problems': ['not run']})['problems']]
    print('%d cases, %d to run; results in %s' % (len(chosen), len(todo), path))
    print('%-30s %-6s %6s  %-5s %-4s  %s' % ('case', 'status', 's', 'cause', 'left', 'named'))
    if todo:
        references = {kind: train_alone(TABLE_BODY if kind[0] else BODY, *kind[1:])
                      for kind in {case.training for case in todo}}
        with EmulatedCluster(hosts=2) as cluster:
            for case in todo:
                started = time.monotonic()
                outcome = run_case(case, cluster, references[case.training])._asdict()
                outcome['whole'] = round(time.monotonic() - started, 1)
                outcomes[case.name] = outcome
                write(path, outcomes)
                print(row(outcome), flush=True)
                for problem in outcome['problems']:
                    print('    FAILED: %s' % problem, flush=True)
    failed = [case.name for case in chosen if outcomes[case.name]['problems']]
    print('%d of %d cases passed%s' % (len(chosen) - len(failed), len(chosen),
                                       '; failed: ' + ', '.join(failed) if failed else ''))
    return 1 if failed else 0
