"""Runs programs one after the other; args: DIRECTORY SIDE, of which SIDE is 'mxnet', 'job' or 'moved'.

DIRECTORY has the scripts, and ``programs`` names them.  Each worker leaves a file of values and one of words for each
program, and says before each event where it is.
"""
import gc
import json
import os
import shutil
import sys

import mxnet as mx
import numpy as np

from lab.fuzz.pieces import Job, slack_of


def note(path, words):
    """Write a file that is whole whenever it is there."""
    with open(path + '.part', 'w') as file:
        json.dump(words, file)
    os.replace(path + '.part', path)


def run(script, name, directory, side, job, swallowed):
    """Run one program; return its problems, if there were any."""
    rank = job.rank
    with open(script) as file:
        namespace = {'__name__': 'program'}
        exec(compile(file.read(), script, 'exec'), namespace)

    class Noting(namespace['Record']):
        """Says where this worker is."""

        event = [0, 'start']

        def at(self, event, what):
            """An event begins."""
            super().at(event, what)
            self.event[:] = [event, what]
            note(os.path.join(directory, 'progress.%s.%d' % (side, rank)), [name] + self.event)

    record = Noting()
    record.event[:] = [0, 'start']
    files = os.path.join(directory, '%s.files%s' % (name, '-mxnet' if job.alone else ''))
    os.makedirs(files, exist_ok=True)
    note(os.path.join(directory, 'progress.%s.%d' % (side, rank)), [name, 0, 'start'])
    problem, slack = None, {}
    try:
        namespace['program_1'](job, record, files)
        mx.nd.waitall()
        if job.alone and namespace.get('SLACK', True):
            values, record.values = record.values, {}
            job.nudge = 1e-7
            namespace['program_1'](job, record, files)
            slack = {'slack of ' + name: value for name, value in slack_of(values, record.values).items()}
            record.values = values
    except Exception as error:
        if os.environ.get('MXHYBRID_FUZZ_TRACEBACK'):
            import traceback
            traceback.print_exc()
        problem = [type(error).__name__, str(error)] + record.event
    if swallowed and problem is None:
        problem = ['swallowed', '; '.join(swallowed)] + record.event
    job.nudge = 0.0
    del swallowed[:]
    path = os.path.join(directory, '%s.%s.%d' % (name, side, rank))
    np.savez(path + '.part.npz', **record.values, **slack)
    os.replace(path + '.part.npz', path + '.npz')
    note(path + '.json', problem)
    return problem


def main():
    """Run all programs."""
    directory, side = sys.argv[1:]
    swallowed = []
    sys.unraisablehook = lambda unraisable: swallowed.append('%s: %s in %r' % (
        unraisable.exc_type.__name__, unraisable.exc_value, unraisable.object))
    job = Job(side == 'mxnet', int(side == 'moved'))
    with open(os.path.join(directory, 'programs.' + side)) as file:
        names = json.load(file)
    for name in names:
        problem = run(os.path.join(directory, name + '.py'), name, directory, side, job, swallowed)
        if job.size > 1:
            # A worker that failed alone leaves the others waiting; workers that fail together go on together.
            everyone = job.store.backend.allgather_json(problem, 'fuzz.' + name)
            if any(each != everyone[0] for each in everyone):
                raise RuntimeError('workers differ: %s' % everyone)
        files = os.path.join(directory, name + '.files')
        if job.rank == 0 and (job.part or not os.path.exists(os.path.join(files, 'moved'))):
            shutil.rmtree(files, ignore_errors=True)
        gc.collect()


if __name__ == '__main__':
    main()
