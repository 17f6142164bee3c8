"""The real training run: examples/word_lm.py on Shakespeare's works, words per second from end to end.

Each contender trains two short epochs; the second one's speed counts, since the first one creates the tables.
Evaluation comes between them and moves more than training does, so bytes are not counted.
"""
import argparse
import math
import re
import subprocess
import sys
from statistics import median
from typing import Any, Callable, Dict, List, Optional

from lab.launchers import SCRIPTS
from lab.processes import JobFailed

from . import launching
from .comparison import Comparison

NAME = 'word_lm'
EXAMPLES = SCRIPTS.parent / 'examples'

COLUMNS, WORDS = 8, 35  # of text, per worker and step
_LEAST_TOKENS = 4000  # fewer have fewer words than examples/word_lm.py draws as candidates, 512
_FETCH_S = 900.0
_FETCH = 'import sys; sys.path.insert(0, %r); from _data import load_corpus; load_corpus("shakespeare", 20000)'
_TOLERANCE = 0.02  # between the perplexities of two contenders, which round differently
_FLAGS = {'hybrid': [], 'hybrid_prefetch': ['--prefetch'], 'hybrid_stale': ['--prefetch'], 'dist_sync': []}


def tokens_for(workers: int, steps: int) -> int:
    """Tokens of training text that give all workers together `steps` steps an epoch, or as few as the example takes."""
    # The last token of a column is a target only.
    return max(_LEAST_TOKENS, COLUMNS * workers * (WORDS * steps + 1))


class Training(Comparison):
    """The benchmark of the example."""

    unit, worker_units = 'words', COLUMNS * WORDS

    def __init__(self, args: argparse.Namespace):
        super().__init__(args)
        self._perplexity: Dict[int, float] = {}
        # An emulated host reaches no other network.
        try:
            subprocess.run([sys.executable, '-c', _FETCH % str(EXAMPLES)], check=True, timeout=_FETCH_S,
                           start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           universal_newlines=True)
        except subprocess.CalledProcessError as error:
            raise JobFailed('cannot get the text:\n%s' % error.stderr) from error
        except subprocess.TimeoutExpired as error:
            raise JobFailed('cannot get the text: its download did not end within %g s' % _FETCH_S) from error

    def describe(self) -> str:
        return 'examples/word_lm.py, forward and backward passes included'

    def told(self, contenders: Dict[str, Dict[str, Any]]) -> List[str]:
        """Return sentences about perplexities, and the time to reach the perplexity of the first contender before its
        last epoch.
        """
        sentences, goal = [], None
        for name, figures in contenders.items():
            rounds = figures['rounds']
            curve = [median(values) for values in zip(*(one['perplexities'] for one in rounds))]
            epochs_s = [median(values) for values in zip(*(one['epochs_s'] for one in rounds))]
            goal = goal or curve[max(0, len(curve) - 2)]
            seconds = time_to(goal, epochs_s, curve)
            sentences.append('%s: validation perplexity %s; %s seconds of training to perplexity %.2f' % (
                name, ', '.join('%.2f' % value for value in curve), '-' if seconds is None else '%.1f' % seconds, goal))
        return sentences

    def skipped(self, hosts: int) -> Dict[str, str]:
        reason = 'the example has row_sparse weights, which need a KVStore'
        fitting = (*_FLAGS, *launching.ROUNDED)
        reasons = {name: reason for name in launching.CONTENDERS if name not in fitting}
        return dict(reasons, torchrec=launching.FOR_RECOMMENDERS)

    def run(self, testbed: Any, hosts: int, contender: str, check: Callable[[], None]) -> Dict[str, Any]:
        args, size = self._args, hosts * self._args.workers
        wire_dtype, flags = launching.ROUNDED.get(contender), _FLAGS.get(contender, [])
        argv = [str(EXAMPLES / 'word_lm.py'), '--kvstore', 'hybrid' if wire_dtype or flags else contender, '--epochs',
                str(args.epochs), '--batch-size', str(COLUMNS * size), '--bptt', str(WORDS), '--max-tokens',
                str(tokens_for(size, args.steps)), *flags]
        variables = {'MXHYBRID_WIRE_DTYPE': wire_dtype} if wire_dtype else {}
        if contender == 'hybrid_stale':
            variables['MXHYBRID_STALENESS'] = '1'
        with self._job(testbed, hosts, check) as job:
            launching.start(job, contender, argv, variables)
            job.wait()
            outputs = job.outputs()
        speeds, perplexities, perplexity = read(outputs)
        first = self._perplexity.setdefault(hosts, perplexity)
        if abs(perplexity / first - 1) > _TOLERANCE:
            raise JobFailed('%s ends with perplexity %.1f, a contender before it with %.1f'
                            % (contender, perplexity, first))
        step_s = self.units(hosts) / speeds[-1]
        epoch_words = (tokens_for(size, args.steps) // (COLUMNS * size) - 1) // WORDS * self.units(hosts)
        return {'epochs_s': [epoch_words / speed for speed in speeds], 'perplexities': perplexities,
                'step_s': step_s, 'steps_s': [], 'sent': None, 'received': None, 'cpu_s': None, 'busy_s': None,
                'hosts': [], 'phases': {}, 'perplexity': perplexity}


def read(outputs: List[str]) -> Any:
    """Parse the output of workers: words per second and perplexity of every epoch, and the final perplexity; JobFailed
    if they are missing.
    """
    text = '\n'.join(outputs)
    speeds = [float(speed.replace(',', '')) for speed in re.findall(r'([\d,]+) words/s', text)]
    perplexities = [float(value) for value in re.findall(r'validation perplexity ([\d.]+)', text)]
    final = re.findall(r'final test perplexity ([\d.]+)', text)
    if not speeds or not final:
        raise JobFailed('examples/word_lm.py printed neither words/s nor a perplexity:\n%s' % text[-2000:])
    return speeds, perplexities, float(final[-1])


def time_to(perplexity: float, epochs_s: List[float], perplexities: List[float]) -> Optional[float]:
    """Return the seconds of training until a perplexity is reached, None if it is not.

    Within an epoch the logarithm of the perplexity is taken to fall evenly.
    """
    elapsed_s = 0.0
    for number, (epoch_s, reached) in enumerate(zip(epochs_s, perplexities)):
        if reached <= perplexity:
            before = perplexities[number - 1] if number else math.inf
            share = 1.0 if math.isinf(before) else math.log(before / perplexity) / math.log(before / reached)
            return elapsed_s + share * epoch_s
        elapsed_s += epoch_s
    return None
