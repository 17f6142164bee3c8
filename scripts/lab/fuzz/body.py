"""Runs programs one after the other; args: DIRECTORY SIDE, of which SIDE is 'mxnet', 'job' or 'moved'.

DIRECTORY has the scripts, and ``programs`` names them.  Each worker leaves a file of values and one of words for each
program, and says before each event where it is.
"""
import gc
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import mxnet as mx
import numpy as np

from lab.files import replace_file
from lab.fuzz.pieces import Job, slack_of

#: Errors by which mxhybrid refuses.
REFUSALS = ('InputError', 'SettingError')


def note(path, words):
    """Write a file of JSON that is whole whenever it is there."""
    replace_file(path, json.dumps(words))


def print_traceback():
    """Print the traceback of the present error if the environment asks for it."""
    if os.environ.get('MXHYBRID_FUZZ_TRACEBACK'):
        traceback.print_exc()


def run(name, directory, side, job, swallowed):
    """Run one program; return its problem, None if there was none."""
    script, progress = directory / (name + '.py'), directory / ('progress.%s.%d' % (side, job.rank))
    namespace = {'__name__': 'program'}
    exec(compile(script.read_text(), str(script), 'exec'), namespace)

    class Noting(namespace['Record']):
        """A record that says where this worker is."""

        event = [0, 'start']

        def at(self, event, what):
            super().at(event, what)
            self.event = [event, what]
            note(progress, [name, *self.event])

    record = Noting()
    note(progress, [name, *record.event])
    files = directory / ('%s.files%s' % (name, '-mxnet' if job.alone else ''))
    files.mkdir(exist_ok=True)
    problem, slack = None, {}
    try:
        namespace['program_1'](job, record, str(files))
        mx.nd.waitall()
        if job.alone and namespace.get('SLACK', True):
            values, record.values = record.values, {}
            job.nudge = 1e-7
            namespace['program_1'](job, record, str(files))
            slack = {'slack of ' + key: value for key, value in slack_of(values, record.values).items()}
            record.values = values
    except Exception as error:
        print_traceback()
        problem = [type(error).__name__, str(error), *record.event]
    if swallowed and problem is None:
        problem = ['swallowed', '; '.join(swallowed), *record.event]
    job.nudge = 0.0
    del swallowed[:]
    result = directory / ('%s.%s.%d' % (name, side, job.rank))
    np.savez('%s.npz' % result, **record.values, **slack)
    note('%s.json' % result, problem)
    return problem


def main():
    """Run all programs."""
    directory, side = Path(sys.argv[1]), sys.argv[2]
    swallowed = []
    sys.unraisablehook = lambda unraisable: swallowed.append('%s: %s in %r' % (
        unraisable.exc_type.__name__, unraisable.exc_value, unraisable.object))
    job = Job(side == 'mxnet', int(side == 'moved'))
    for name in json.loads((directory / ('programs.' + side)).read_text()):
        problem = run(name, directory, side, job, swallowed)
        if job.size > 1:
            # A worker that failed alone leaves the others waiting; workers that fail together go on together.
            everyone = job.store.backend.allgather_json(problem, 'fuzz.' + name)
            if any(each != everyone[0] for each in everyone):
                raise RuntimeError('workers differ: %s' % everyone)
        files = directory / (name + '.files')
        if job.rank == 0 and (job.part or not (files / 'moved').exists()):
            shutil.rmtree(str(files), ignore_errors=True)
        gc.collect()


if __name__ == '__main__':
    main()
