"""The command line: draws programs, runs them, shrinks failing programs, counts outcomes."""
import argparse
import collections
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import messages, runner, shrinking
from .tables import TABLES, shrinking as table_shrinking

#: Lines of a failure's words that are shown.
_LINES = 12


#: The functions that make smaller programs of other kinds than the plain one.
_SMALLER = {TABLES.name: (table_shrinking.structures, table_shrinking.changes)}


def parse(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog='scripts/fuzz', formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description='Draw training programs, run each in a job and in one process with MXNet alone, and compare what '
                    'they have after every event. A failing program is made small and written as a script.',
        epilog='scripts/fuzz networks, with options of its own, does it for networks that are split.')
    add = parser.add_argument
    add('kind', nargs='?', choices=['tables'], help='programs with dynamic tables')
    add('--programs', type=int, default=100, help='number of programs')
    add('--first', type=int, default=0, metavar='SEED', help='seed of the first; the others follow')
    add('--seed', type=int, help='run this program by itself')
    add('--scripts', type=Path, default=Path('fuzz-failures'), metavar='DIR', help='directory for scripts of failures')
    add('--messages', type=float, metavar='MINUTES',
        help='in place of programs, fuzz the messages between hosts for this time; needs clang++')
    add('--no-shrink', action='store_true', help='do not make failing programs smaller')
    return parser.parse_args(argv)


def _tell(words: str) -> None:
    print(words, flush=True)


class Session:
    """Programs that were run so far, and their outcomes."""

    def __init__(self, scripts: Path, shrinks: bool, kind: runner.Kind = runner.PLAIN):
        self._scripts, self._shrinks, self._kind = scripts, shrinks, kind
        self.outcomes: Dict[int, runner.Outcome] = {}

    def run(self, seeds: List[int]) -> None:
        """Run the programs of seeds that share a job; examine the programs that fail."""
        began = time.monotonic()
        programs = [self._kind.draw(seed) for seed in seeds]
        outcomes = runner.run(programs, kind=self._kind)
        self.outcomes.update(zip(seeds, outcomes))
        job = programs[0]['job']
        kinds = collections.Counter(outcome.kind for outcome in outcomes)
        _tell('seeds %d to %d, %s with %d workers: %s; %.0f s' % (
            seeds[0], seeds[-1], job['launcher'], job['workers'],
            ', '.join('%d %s' % (count, kind) for kind, count in kinds.most_common()), time.monotonic() - began))
        for number, outcome in enumerate(outcomes):
            if outcome.fails:
                self._look_closer(programs[:number + 1], outcome)

    def _look_closer(self, programs: List[Dict[str, Any]], outcome: runner.Outcome) -> None:
        seed = programs[-1]['seed']
        _tell('\nseed %d %s, event %d: %s' % (seed, outcome.kind, outcome.event, _shortened(outcome.words)))
        shown_programs = programs[-1:]
        alone = runner.run(shown_programs, kind=self._kind)[0] if len(programs) > 1 else outcome
        if alone.kind == outcome.kind:
            if self._shrinks:
                shown_programs = [shrink(programs[-1], alone, kind=self._kind)]
        else:
            _tell('by itself: %s; with the %d programs before it in the job:' % (alone.kind, len(programs) - 1))
            shown_programs = with_those_before(programs, outcome.kind, self._kind)
            if not shown_programs:
                _tell('it did not come again\n')
                shown_programs = programs
        self._scripts.mkdir(parents=True, exist_ok=True)
        path = self._scripts / ('%s-%d.py' % (self._kind.name, seed))
        path.write_text(self._kind.standing_alone(shown_programs, str(path)))
        _tell('%s shows it:\n%s\n' % (path, '\n'.join(self._kind.commands(shown_programs[-1], str(path)))))


def _shortened(words: str) -> str:
    lines = words.strip().splitlines()
    return '\n'.join(lines if len(lines) <= _LINES else [lines[0], '...'] + lines[-_LINES:])


def shrink(program: Dict[str, Any], outcome: runner.Outcome, alter: Optional[runner.Alter] = None,
           kind: runner.Kind = runner.PLAIN) -> Dict[str, Any]:
    """Find a smaller program that fails in the same way."""
    def fails(programs: List[Dict[str, Any]]) -> List[bool]:
        return [each.kind == outcome.kind for each in runner.run_all(programs, alter, kind)]
    if 0 < outcome.event < len(program['events']):
        shorter = dict(program, events=program['events'][:outcome.event])
        program = shorter if fails([shorter])[0] else program
    return shrinking.shrink(program, fails, lambda words: _tell('    shrunk to ' + words), *_SMALLER.get(kind.name, ()))


def with_those_before(programs: List[Dict[str, Any]], outcome: str, kind: runner.Kind = runner.PLAIN
                      ) -> List[Dict[str, Any]]:
    """Find as few programs as possible of which the last fails behind the others in one job; none if it does not."""
    def fails(chosen: List[Dict[str, Any]]) -> bool:
        return runner.run(chosen, kind=kind)[-1].kind == outcome
    *before, last = programs
    if not fails(programs):
        return []
    size = len(before)
    while size:
        size = -(-size // 2)
        start = 0
        while start < len(before):
            fewer = before[:start] + before[start + size:]
            if fails(fewer + [last]):
                before = fewer
            else:
                start += size
        size = 0 if size == 1 else size
    return before + [last]


def gist(words: str) -> str:
    """Return the message of an error without the numbers and names that differ from case to case."""
    return re.sub(r'net_\w+', 'PARAMETER', re.sub(r'\d+(\.\d+)?(e-?\d+)?', 'N', words.strip().splitlines()[-1]))[:160]


def summary(outcomes: Dict[int, runner.Outcome], seconds: float) -> str:
    """Summarize the outcomes of all programs."""
    kinds = collections.Counter(outcome.kind for outcome in outcomes.values())
    lines = ['%d programs in %.0f min: %s' % (len(outcomes), seconds / 60, ', '.join(
        '%d %s' % (count, kind) for kind, count in kinds.most_common()))]
    for kind in ('refused', 'invalid'):
        messages: Dict[str, List[int]] = collections.defaultdict(list)
        for seed, outcome in outcomes.items():
            if outcome.kind == kind:
                messages[gist(outcome.words)].append(seed)
        lines += ['    %s, %d times, as with seed %d: %s' % (kind, len(seeds), seeds[0], message)
                  for message, seeds in sorted(messages.items(), key=lambda item: -len(item[1]))]
    failing = [seed for seed, outcome in outcomes.items() if outcome.fails]
    if failing:
        lines.append('failing seeds: ' + ', '.join(map(str, failing)))
    return '\n'.join(lines)


def main(argv: Optional[List[str]] = None) -> int:
    """Run programs; status 1 if any failed."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ['networks']:
        from .networks import cli as networks
        return networks.main(argv[1:])
    args = parse(argv)
    if args.messages is not None:
        return messages.run(args.messages, args.scripts)
    kind = TABLES if args.kind else runner.PLAIN
    session = Session(args.scripts, not args.no_shrink, kind)
    began = time.monotonic()
    seeds = [args.seed] if args.seed is not None else list(range(args.first, args.first + args.programs))
    try:
        while seeds:
            batch = [seed for seed in seeds if seed // kind.per_job == seeds[0] // kind.per_job]
            session.run(batch)
            seeds = seeds[len(batch):]
    except KeyboardInterrupt:
        sys.stderr.write('interrupted\n')
        return 130
    finally:
        _tell(summary(session.outcomes, time.monotonic() - began))
    return int(any(outcome.fails for outcome in session.outcomes.values()))
