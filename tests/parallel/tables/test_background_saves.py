"""Saves in the background in jobs: the files are those of the step of the call, on servers and in split networks."""
import os

import numpy as np
import pytest
from lab.jobs import run_job

import mxhybrid

from ...helpers.checkpoints import assert_same_files
from . import BODIES


@pytest.mark.parametrize('launcher, workers, servers', [('horovodrun', 2, 2), ('launch.py', 2, 1)])
def test_files_are_those_of_the_call(tmp_path, launcher, workers, servers):
    result = run_job(BODIES / 'background_saves.py', launcher, workers=workers, servers=servers, args=[tmp_path],
                     env={'MXHYBRID_PARTITIONS': '3'}, timeout=150).ok()
    values = result.results[0]
    for case in ('tables', 'split', 'sharded', 'unseen'):
        waited, later, steps = values[case]
        assert os.path.isdir(waited) and os.path.isdir(later)
        assert_same_files(waited, later)
        assert steps > 0 or case in ('split', 'sharded', 'unseen')
    for case in ('tables', 'unseen'):
        keys, rows, later_rows = values['delta of ' + case]
        assert (rows != later_rows).any(axis=1).all()
        with mxhybrid.checkpoint.open(str(tmp_path / (case + '-later')), verify=True) as tables:
            assert tables.step == 8
            np.testing.assert_array_equal(tables['items'].rows(keys), rows)
    errors = [worker['faults'] for worker in result.results.values()]
    assert errors[0] == errors[1]
    assert 'step 1, saved in the background' in errors[0][0] and 'was removed while' in errors[0][0]
    assert errors[0][1] == '00000001-step-2'
    with mxhybrid.checkpoint.open(str(tmp_path / 'last'), verify=True) as tables:
        assert tables.step == 1
