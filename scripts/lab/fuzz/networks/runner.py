"""Runs networks, many of them in one job, and reports the outcome of each."""
import json
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from lab.jobs import start_job
from lab.processes import PATIENCE

from ..runner import Outcome, await_end, run_in_groups, run_in_jobs

BODY = Path(__file__).resolve().parent / 'body.py'

#: Seconds that a worker may take from one note to the next, or to start.
NOTE_S = 40.0


def run_all(programs: List[Dict[str, Any]]) -> List[Outcome]:
    """Run programs, in one job for each number of workers, with and without sharded updates."""
    return run_in_groups(programs, lambda program: (program['workers'], program['shard_updates']), run)


def run(programs: List[Dict[str, Any]]) -> List[Outcome]:
    """Run programs in one job, or, after one that ends it, in another."""
    with tempfile.TemporaryDirectory(prefix='mxhybrid-fuzz-') as folder:
        directory = Path(folder)
        names = ['%03d' % number for number in range(len(programs))]
        for name, program in zip(names, programs):
            (directory / (name + '.json')).write_text(json.dumps(program))

        def read(name: str) -> Optional[Outcome]:
            verdict = directory / (name + '.verdict.json')
            return Outcome(*json.loads(verdict.read_text())) if verdict.exists() else None
        outcomes = run_in_jobs(directory, 'job', names, lambda: _run_job(directory, programs[0]), read,
                               lambda name, ended: _blamed(directory, name, ended), lambda last, ended: ended)
        return [outcomes[name] for name in names]


def _blamed(directory: Path, name: str, ended: Outcome) -> Outcome:
    """Return the outcome of the program that ended the job: invalid, if the process with MXNet alone ended."""
    notes = [json.loads(path.read_text()) for path in _notes(directory)]
    if [name, 'reference'] in notes:
        return Outcome('invalid', 'MXNet alone: ' + ended.words)
    where = ', '.join('worker %d: %s' % (rank, words if noted == name else 'at %s' % noted)
                      for rank, (noted, words) in enumerate(notes))
    return ended._replace(words='%s (%s)' % (ended.words, where))


def _run_job(directory: Path, program: Dict[str, Any]) -> Optional[Outcome]:
    """Run the body to its end, in a job as a program needs it; return its problem, None if it succeeded."""
    env = {'MXHYBRID_LOG_LEVEL': 'ERROR', 'MXHYBRID_STALL_TIMEOUT': str(20 * PATIENCE),
           'MXNET_STORAGE_FALLBACK_LOG_VERBOSE': '0',
           'MXHYBRID_SHARD_UPDATES': str(int(program['shard_updates']))}
    with start_job(BODY, 'horovodrun', workers=program['workers'], args=[directory], env=env) as running:
        return await_end(running, lambda: _notes(directory), NOTE_S * PATIENCE)[0]


def _notes(directory: Path) -> List[Path]:
    return sorted(directory.glob('progress.job.?'))
