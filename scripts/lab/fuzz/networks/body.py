"""Runs networks one after the other, each split over the workers of a job; args: DIRECTORY.

DIRECTORY has the programs, and ``programs.job`` names them.  Worker 0 compares each with one process, and leaves a file
with a verdict; each worker says where it is.
"""
import contextlib
import json
import re
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

import mxhybrid
from lab.fuzz.body import REFUSALS, note, print_traceback
from lab.fuzz.networks import pieces, training
from lab.fuzz.networks.alone import Noise, class_of
from lab.fuzz.networks.network import rounds, tolerance_of
from lab.fuzz.networks.script import spec_of
from mxhybrid.job.join import member
from mxhybrid.parallel.redistribution.worker_group import worker_group_of

#: The multiple of the rounding error of one process in float32 that another order of its sums may make.
SINGLE_SLACK = 8.0


def reference(program, drawn_values, directory):
    """Run the network in one process; return its values in float64, those of other runs, and the slack for rounding."""
    spec = spec_of(program)
    single = program['dtype'] == 'float32'
    exact = dict(spec, dtype='float64')
    plain = class_of(program)

    def hybridized():
        net = plain()
        net.hybridize()
        return net
    whole = training.run_whole(class_of(program, dtype='float64'), exact, drawn_values, directory)
    others = [training.run_whole(plain, spec, drawn_values, directory)] if single else []
    with contextlib.suppress(Exception):  # where MXNet itself cannot compile the network
        others.append(training.run_whole(hybridized, spec, drawn_values, directory))
    noises = [Noise(single=False)] if not single else []
    if rounds(program):
        noises += [Noise(single=True, everywhere=single, number=number) for number in range(3)]
    runs = [(noise.slack, noise.unsound, training.run_whole(
        class_of(program, noise, 'float64'), exact, drawn_values, directory)) for noise in noises]
    runs += [(SINGLE_SLACK, Noise(single=True).unsound, other) for other in others if single]
    slack = {}
    for name, values in whole.items():
        if values.dtype.kind == 'f' and not name.startswith('box of '):
            slack[name] = max(_slack(values, run[name], *how) for *how, run in runs)
    return whole, others, slack


def _slack(values, other, slack, unsound):
    """Return the difference that rounding may make, infinity if rounding decides about values."""
    with np.errstate(all='ignore'):
        apart = np.nanmax(np.abs(other.astype('f8') - values), initial=0)
        scale = np.nanmax(np.abs(np.where(np.isfinite(values), values, 0)), initial=1)
    return np.inf if apart > unsound * scale else slack * apart


def verdict(program, records, directory):
    """Compare the results of all workers with one process; return kind, words and step."""
    spec = spec_of(program)
    values, _ = pieces.joined(records, spec)
    try:
        whole, others, slack = reference(program, values, directory)
    except Exception as error:
        return ['invalid', '%s: %s' % (type(error).__name__, error), 0]
    tolerance = tolerance_of(program)
    values, problems = pieces.joined(records, spec, *((tolerance, slack) if rounds(program) else ()))
    problems += pieces.masks_problems(values, spec)
    problems += pieces.differences(values, whole, others, slack, tolerance)
    if problems:
        step, words = min(problems)
        return ['differs', '; '.join(words for _, words in sorted(problems)[:4]), step]
    unsound = sum(np.isinf(value) for value in slack.values())
    return ['same', '%d of %d values not compared' % (unsound, len(slack)) if unsound else '', 0]


def run(program, name, directory, store):
    """Run one network; worker 0 leaves the verdict.  Return the values that have to be equal on all workers."""
    rank = store.rank

    def note_progress(words):
        note(directory / ('progress.job.%d' % rank), [name, words])
    note_progress('start')
    problem, files = None, directory / (name + '.files')
    files.mkdir(exist_ok=True)
    try:
        record = training.run_split(rank, class_of(program), spec_of(program), str(files), note_progress)
        np.savez(str(directory / ('record.%d.npz' % rank)), **record)
        mx.nd.waitall()
    except Exception as error:
        print_traceback()
        problem = [type(error).__name__, str(error)]
        note_progress('%s: %s' % (problem[0], problem[1][:200]))
        worker_group_of(member()).note_failure()  # for the message if another worker waits for this one
    # The next number of a redistribution: workers that disagree on it would mix up the arrays of redistributions.
    number = worker_group_of(member()).reserve_numbers(0)
    everyone, numbers = zip(*store.backend.allgather_json([problem, number], 'fuzz.' + name))
    if not any(everyone) and len(set(numbers)) > 1:
        everyone = [['numbers', 'the next redistribution has the numbers %s' % (numbers,)]]
    if rank == 0:
        if any(everyone):
            kind, words = next(each for each in everyone if each)
            alike = len({bool(each) for each in everyone}) == 1
            refused = alike and all(each[0] in REFUSALS for each in everyone)
            outcome = ['refused' if refused else 'failed', '%s%s: %s' % (
                kind, '' if alike else ' on some workers only', re.sub(r'\s*Stack trace:[\s\S]*', '', words)), 0]
        else:
            note_progress('reference')
            outcome = verdict(program, pieces.records_in(directory, store.num_workers), directory)
        note(directory / (name + '.verdict.json'), outcome)
    note_progress('end')


def main():
    """Run all networks."""
    directory = Path(sys.argv[1])
    store = mxhybrid.create()
    for name in json.loads((directory / 'programs.job').read_text()):
        run(json.loads((directory / (name + '.json')).read_text()), name, directory, store)
        store._barrier()


if __name__ == '__main__':
    main()
