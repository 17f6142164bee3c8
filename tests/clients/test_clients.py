"""Networks of GluonCV, GluonNLP and Sockeye: split, they equal one process, and nothing is replicated.

``scripts/test --clients`` installs the packages and runs this.
"""
from pathlib import Path

import pytest
from lab.jobs import run_job

from .networks import CLIENTS

for package in ('gluoncv', 'gluonnlp', 'sockeye'):
    pytest.importorskip(package)

BODY = Path(__file__).parent / 'body.py'
#: Outputs and weights after some steps, by type.
TOLERANCES = {'float64': 1e-10, 'float32': 1e-4}


@pytest.mark.parametrize('name', sorted(CLIENTS))
def test_equals_one_process(name):
    result = run_job(BODY, 'horovodrun', args=[name], workers=2, timeout=280).ok()
    for rank in range(2):
        found = result.results[rank]['found']
        assert len(found) == 2
        for label, values in found.items():
            assert values['joint'] == [], label
            assert max(values['outputs'], values['weights']) < TOLERANCES[CLIENTS[name].dtype], (label, values)
