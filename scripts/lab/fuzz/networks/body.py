"""Runs networks one after the other, each split over the workers of a job; args: DIRECTORY.

DIRECTORY has the programs, and ``programs.job`` names them.  Worker 0 compares each with one process, and leaves a file
with a verdict; each worker says where it is.
"""
import json
import os
import re
import sys

import mxnet as mx
import numpy as np

import mxhybrid
from lab.fuzz.body import note
from lab.fuzz.networks import pieces
from lab.fuzz.networks.alone import class_of
from lab.fuzz.networks.network import tolerance_of
from lab.fuzz.networks.script import spec_of
from mxhybrid.job.join import member
from mxhybrid.parallel.redistribution.worker_group import worker_group_of

#: How much more than a change by noise makes is taken for rounding.
SLACK = 1e3
#: Differences of two runs in one process from which on a value is not compared.
UNSOUND = 1e-6

REFUSALS = ('InputError', 'SettingError')


def reference(program, drawn_values, directory):
    """Run the network in one process: as it is, hybridized, and how far rounding may go, by name."""
    spec = spec_of(program)
    plain = class_of(program)

    def hybridized():
        net = plain()
        net.hybridize()
        return net
    whole = pieces.run_whole(plain, spec, drawn_values, directory)
    try:
        others = [pieces.run_whole(hybridized, spec, drawn_values, directory)]
    except Exception:  # where MXNet itself cannot compile the network
        others = []
    noise = pieces.run_whole(class_of(program, noisy=True), spec, drawn_values, directory)
    slack = {}
    for name, values in whole.items():
        if values.dtype.kind == 'f' and not name.startswith('box of '):
            with np.errstate(all='ignore'):
                apart = np.nanmax(np.abs(noise[name] - values), initial=0)
            slack[name] = np.inf if apart > UNSOUND else SLACK * apart
    return whole, others, slack


def verdict(program, records, directory):
    """Compare; returns kind, words and step."""
    spec = spec_of(program)
    values, problems = pieces.joined(records, spec)
    try:
        whole, others, slack = reference(program, values, directory)
    except Exception as error:
        return ['invalid', '%s: %s' % (type(error).__name__, error), 0]
    problems += pieces.masks_problems(values, spec)
    problems += pieces.differences(values, whole, others, slack, tolerance_of(program))
    if problems:
        step, words = min(problems)
        return ['differs', '; '.join(words for _, words in sorted(problems)[:4]), step]
    unsound = sum(np.isinf(value) for value in slack.values())
    return ['same', '%d of %d values not compared' % (unsound, len(slack)) if unsound else '', 0]


def run(program, name, directory, store):
    """Run one network; worker 0 leaves the verdict.  Return the values that have to be equal on all workers."""
    rank = store.rank

    def note_progress(words):
        note(os.path.join(directory, 'progress.job.%d' % rank), [name, words])
    note_progress('start')
    problem = None
    try:
        record = pieces.run_split(rank, class_of(program), spec_of(program), directory, note_progress)
        np.savez(os.path.join(directory, 'record.%d.npz' % rank), **record)
        mx.nd.waitall()
    except Exception as error:
        if os.environ.get('MXHYBRID_FUZZ_TRACEBACK'):
            import traceback
            traceback.print_exc()
        problem = [type(error).__name__, str(error)]
    # The next number of an exchange: workers that disagree on it would mix up the arrays of exchanges.
    number = worker_group_of(member({})).reserve_numbers(0)
    everyone, numbers = zip(*store.backend.allgather_json([problem, number], 'fuzz.' + name))
    if not any(everyone) and len(set(numbers)) > 1:
        everyone = [['numbers', 'the next exchange has the numbers %s' % (numbers,)]]
    if rank == 0:
        if any(everyone):
            kind, words = next(each for each in everyone if each)
            alike = len({bool(each) for each in everyone}) == 1
            refused = alike and all(each[0] in REFUSALS for each in everyone)
            outcome = ['refused' if refused else 'failed', '%s%s: %s' % (
                kind, '' if alike else ' on some workers only', re.sub(r'\s*Stack trace:[\s\S]*', '', words)), 0]
        else:
            note_progress('reference')
            records = []
            for other in range(store.num_workers):
                with np.load(os.path.join(directory, 'record.%d.npz' % other)) as file:
                    records.append(dict(file))
            outcome = verdict(program, records, directory)
        note(os.path.join(directory, name + '.verdict.json'), outcome)
    note_progress('end')


def main():
    """Run all networks."""
    directory = sys.argv[1]
    store = mxhybrid.create()
    with open(os.path.join(directory, 'programs.job')) as file:
        names = json.load(file)
    for name in names:
        with open(os.path.join(directory, name + '.json')) as file:
            program = json.load(file)
        run(program, name, directory, store)
        store._barrier()


if __name__ == '__main__':
    main()
