"""The command line: runs programs with dynamic tables in jobs and in one process, and compares."""
import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from ...jobs import run_job
from .drawing import PER_JOB, draw, draw_job

_BODY = Path(__file__).with_name('body.py')
#: Relative and absolute differences that rounding may make, by dtype.
_TOLERANCES = {'float64': 1e-9, 'float32': 2e-5}
#: Seconds for the programs of one job.
_TIMEOUT_S = 120


def run(programs: List[Dict[str, Any]], job: Dict[str, Any]) -> Dict[int, str]:
    """Run programs in one job; return by seed how each differs from one process, '' if it does not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'programs.json'
        path.write_text(json.dumps(programs))
        alone = run_job(_BODY, 'none', args=[str(path)], timeout=_TIMEOUT_S).ok().results[0]
        together = run_job(_BODY, job['launcher'], workers=job['workers'], servers=job['servers'], args=[str(path)],
                           timeout=_TIMEOUT_S).ok().results
    return {program['seed']: difference(program, alone[str(program['seed'])],
                                        {rank: values[str(program['seed'])] for rank, values in together.items()})
            for program in programs}


def difference(program: Dict[str, Any], expected: Dict[str, Any], values: Dict[int, Dict[str, Any]]) -> str:
    """Return the first value of any worker that is not that of one process, '' if there is none."""
    tolerance = _TOLERANCES[program['dtype']]
    for rank, of_rank in values.items():
        for name, value in expected.items():
            if not np.allclose(of_rank[name], value, tolerance, tolerance):
                worst = np.unravel_index(np.argmax(np.abs(of_rank[name] - value)), value.shape)
                return 'worker %d, %s: %.9g, not %.9g' % (rank, name, of_rank[name][worst], value[worst])
    return ''


def main(argv: Optional[List[str]] = None) -> int:
    """Run programs; status 1 if any differs."""
    parser = argparse.ArgumentParser(
        prog='scripts/fuzz tables', formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description='Draw training programs with dynamic tables, run each in a job and in one process, and compare the '
                    'rows of all tables.')
    parser.add_argument('--programs', type=int, default=100, help='number of programs')
    parser.add_argument('--first', type=int, default=0, metavar='SEED', help='seed of the first; the others follow')
    parser.add_argument('--seed', type=int, help='run this program by itself, and print it')
    args = parser.parse_args(argv)
    seeds = [args.seed] if args.seed is not None else list(range(args.first, args.first + args.programs))
    failing = 0
    while seeds:
        batch = [seed for seed in seeds if seed // PER_JOB == seeds[0] // PER_JOB]
        seeds = seeds[len(batch):]
        programs, job = [draw(seed) for seed in batch], draw_job(batch[0] // PER_JOB)
        if args.seed is not None:
            sys.stdout.write(json.dumps(programs[0], indent=1) + '\n')
        differences = {seed: words for seed, words in run(programs, job).items() if words}
        failing += len(differences)
        sys.stdout.write('seeds %d to %d, %s with %d workers: %d differ\n' % (
            batch[0], batch[-1], job['launcher'], job['workers'], len(differences)))
        for seed, words in differences.items():
            sys.stdout.write('seed %d: %s; scripts/fuzz tables --seed %d prints it\n' % (seed, words, seed))
        sys.stdout.flush()
    return int(failing > 0)
