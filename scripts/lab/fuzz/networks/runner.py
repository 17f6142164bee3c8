"""Runs networks, many of them in one job, and reports the outcome of each."""
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from lab.jobs import start_job
from lab.processes import PATIENCE

from ..runner import Outcome, await_end, run_in_jobs

BODY = Path(__file__).resolve().parent / 'body.py'

#: Seconds that a worker may take from one note to the next, or to start.
NOTE_S = 40.0


def run_all(programs: List[Dict[str, Any]]) -> List[Outcome]:
    """Run programs, in one job for each number of workers, with and without sharded updates."""
    outcomes: Dict[int, Outcome] = {}
    sorts = [(program['workers'], program['shard_updates']) for program in programs]
    for sort in sorted(set(sorts)):
        numbers = [number for number, each in enumerate(sorts) if each == sort]
        outcomes.update(zip(numbers, run([programs[number] for number in numbers])))
    return [outcomes[number] for number in range(len(programs))]


def run(programs: List[Dict[str, Any]]) -> List[Outcome]:
    """Run programs in one job, or, after one that ends it, in another."""
    directory = Path(tempfile.mkdtemp(prefix='mxhybrid-fuzz-'))
    try:
        names = ['%03d' % number for number in range(len(programs))]
        for name, program in zip(names, programs):
            (directory / (name + '.json')).write_text(json.dumps(program))

        def read(name: str) -> Optional[Outcome]:
            verdict = directory / (name + '.verdict.json')
            return Outcome(*json.loads(verdict.read_text())) if verdict.exists() else None
        outcomes = run_in_jobs(directory, 'job', names, lambda: _run_job(directory, programs[0]), read,
                               lambda name, ended: _blamed(directory, name, ended), lambda last, ended: ended)
        return [outcomes[name] for name in names]
    finally:
        shutil.rmtree(str(directory), ignore_errors=True)


def _blamed(directory: Path, name: str, ended: Any) -> Outcome:
    """Return the outcome of the program that ended the job: invalid, if the process with MXNet alone ended."""
    notes = [json.loads(path.read_text()) for path in sorted(directory.glob('progress.job.?'))]
    where = ', '.join('worker %d: %s' % (rank, words if at == name else 'at %s' % at)
                      for rank, (at, words) in enumerate(notes))
    if [name, 'reference'] in notes:
        return Outcome('invalid', 'MXNet alone: ' + ended.words)
    return ended._replace(words='%s (%s)' % (ended.words, where))


def _run_job(directory: Path, program: Dict[str, Any]) -> Any:
    """Run the body to its end, in a job of a program's sort; return its problem, None if it succeeded."""
    env = {'MXHYBRID_LOG_LEVEL': 'ERROR', 'MXHYBRID_STALL_TIMEOUT': str(20 * PATIENCE),
           'MXNET_STORAGE_FALLBACK_LOG_VERBOSE': '0',
           'MXHYBRID_SHARD_UPDATES': str(int(program['shard_updates']))}
    with start_job(BODY, 'horovodrun', workers=program['workers'], args=[directory], env=env) as running:
        result = await_end(running, lambda: sorted(directory.glob('progress.job.?')), NOTE_S * PATIENCE)
    if isinstance(result, Outcome):
        return result
    if result.returncode:
        return Outcome('dies', 'the job ended with status %d:\n%s' % (result.returncode, _cause(result.output)))
    return None


def _cause(output: str) -> str:
    """Return the output of the workers, without Horovod's report of their ends."""
    said = [line for line in output.splitlines() if re.match(r'\[\d+\]<', line)]
    return '\n'.join(said[-30:] or output.splitlines()[-30:])
