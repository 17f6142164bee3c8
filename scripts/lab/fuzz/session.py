"""A run of a fuzzer: draws programs, runs them, shrinks failing programs, counts outcomes."""
import collections
import re
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import runner, shrinking

#: The directory of scripts that show failures.
SCRIPTS = Path('fuzz-failures')
#: Lines of a failure's words that are shown.
_LINES = 12


def tell(words: str) -> None:
    """Print at once."""
    print(words, flush=True)


class Session:
    """Programs that were run so far, and their outcomes."""

    #: Outcomes that are no findings.
    accepted: Tuple[str, ...] = ('same', 'invalid')

    def __init__(self, kind: runner.Kind = runner.PLAIN):
        self._kind = kind
        self.outcomes: Dict[int, runner.Outcome] = {}

    @property
    def findings(self) -> List[int]:
        """Return the seeds of all programs that failed."""
        return [seed for seed, outcome in self.outcomes.items() if outcome.kind not in self.accepted]

    def run_all(self, seeds: List[int]) -> None:
        """Run programs, those together that share a job."""
        while seeds:
            batch = self.batch(seeds)
            self.run(batch)
            seeds = seeds[len(batch):]

    def batch(self, seeds: List[int]) -> List[int]:
        """Return the first seeds, whose programs share a job."""
        return [seed for seed in seeds if seed // self._kind.per_job == seeds[0] // self._kind.per_job]

    def close(self) -> None:
        """End processes that draw programs; this kind has none."""

    def summary(self, seconds: float) -> str:
        """Summarize the outcomes of all programs."""
        lines = ['%d programs in %.0f min: %s' % (len(self.outcomes), seconds / 60, counted(self.outcomes.values()))]
        for kind in ('refused', 'invalid'):
            messages: Dict[str, List[int]] = collections.defaultdict(list)
            for seed, outcome in self.outcomes.items():
                if outcome.kind == kind:
                    messages[gist(outcome.words)].append(seed)
            lines += ['    %s, %d times, as with seed %d: %s' % (kind, len(seeds), seeds[0], message)
                      for message, seeds in sorted(messages.items(), key=lambda item: -len(item[1]))]
        if self.findings:
            lines.append('failing seeds: ' + ', '.join(map(str, self.findings)))
        return '\n'.join(lines)

    def _show(self, name: str, source: Callable[[str], str], commands: Callable[[str], List[str]]) -> None:
        """Write the script that shows a failure, and print the commands that run it; both depend on its path."""
        SCRIPTS.mkdir(exist_ok=True)
        path = SCRIPTS / name
        path.write_text(source(str(path)))
        tell('%s shows it:\n%s\n' % (path, '\n'.join(commands(str(path)))))

    def run(self, seeds: List[int]) -> None:
        """Run the programs of seeds that share a job; examine the programs that fail."""
        began = time.monotonic()
        programs = [self._kind.draw(seed) for seed in seeds]
        outcomes = runner.run(programs, kind=self._kind)
        self.outcomes.update(zip(seeds, outcomes))
        job = programs[0]['job']
        tell('seeds %d to %d, %s with %d workers: %s; %.0f s' % (
            seeds[0], seeds[-1], job['launcher'], job['workers'], counted(outcomes), time.monotonic() - began))
        for number, outcome in enumerate(outcomes):
            if outcome.fails:
                self._look_closer(programs[:number + 1], outcome)

    def _look_closer(self, programs: List[Dict[str, Any]], outcome: runner.Outcome) -> None:
        """Show the failure of the last program by a small script."""
        seed = programs[-1]['seed']
        tell('\nseed %d %s, event %d: %s' % (seed, outcome.kind, outcome.event, shortened(outcome.words)))
        alone = runner.run(programs[-1:], kind=self._kind)[0] if len(programs) > 1 else outcome
        if alone.kind == outcome.kind:
            shown_programs = [shrink(programs[-1], alone, kind=self._kind)]
        else:
            tell('by itself: %s; with the %d programs before it in the job:' % (alone.kind, len(programs) - 1))
            shown_programs = with_those_before(programs, outcome.kind, self._kind)
            if not shown_programs:
                tell('it did not come again\n')
                shown_programs = programs
        self._show('%s-%d.py' % (self._kind.name, seed), lambda path: self._kind.standing_alone(shown_programs, path),
                   lambda path: self._kind.commands(shown_programs[-1], path))


def shortened(words: str) -> str:
    """Return the first line of a message and its last lines."""
    lines = words.strip().splitlines()
    return '\n'.join(lines if len(lines) <= _LINES else [lines[0], '...'] + lines[-_LINES:])


def shrink(program: Dict[str, Any], outcome: runner.Outcome, alter: Optional[runner.Alter] = None,
           kind: runner.Kind = runner.PLAIN) -> Dict[str, Any]:
    """Find a smaller program that fails in the same way."""
    def fails(places: Any) -> List[bool]:
        tell('    shrinking: %d candidates' % len(places))
        return [each.kind == outcome.kind for each in runner.run_all([each for _, each in places], alter, kind)]
    reduction = shrinking.shrink(program, outcome.event, kind.structures, kind.changes)
    return shrinking.drive({'it': reduction}, fails)['it']


def with_those_before(programs: List[Dict[str, Any]], outcome: str, kind: runner.Kind = runner.PLAIN
                      ) -> List[Dict[str, Any]]:
    """Find as few programs as possible of which the last fails behind the others in one job; none if it does not."""
    def fails(chosen: List[Dict[str, Any]]) -> bool:
        return runner.run(chosen, kind=kind)[-1].kind == outcome
    if not fails(programs):
        return []
    *before, last = programs
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


def counted(outcomes: Iterable[runner.Outcome]) -> str:
    """Return how many outcomes of each kind there are."""
    return ', '.join('%d %s' % (count, kind)
                     for kind, count in collections.Counter(outcome.kind for outcome in outcomes).most_common())
