"""gluonnlp's BigRNN with row_sparse tables: kvstore='hybrid' equals MXNet in one process on the joined batch.

Collected where gluonnlp is installed, see conftest.py.
"""
import re

import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'bigrnn.py'
TABLES = {'bigrnn0_embedding0_embedding0_weight': (200, 8), 'bigrnn0_decoder0_weight': (200, 6)}

pytestmark = [pytest.mark.both_pythons, pytest.mark.timeout(150)]


@pytest.fixture(scope='module')
def expected():
    """MXNet alone."""
    alone = comparing.reference(BODY)
    shapes = {name: alone['weights'][name].shape for name, stype in alone['stypes'].items() if stype == 'row_sparse'}
    assert shapes == TABLES
    assert len(alone['weights']) == 8
    return alone


def assert_equals(expected, result, workers):
    """All parameters on every worker, and the loss of the network that rank 0 saved."""
    comparing.assert_cases({'weights': expected['weights']}, result, workers)
    np.testing.assert_allclose(result.results[0]['held_out'], expected['held_out'], **comparing.TOLERANCE)
    assert [result.results[rank]['seen'] for rank in range(workers)] == [(rank, workers) for rank in range(workers)]


def read_route_table(text):
    """Lines of ``report()`` as dicts, by parameter."""
    cells = [re.split(r'\s{2,}', line) for line in text.splitlines()[1:]]
    return {line[0]: dict(zip(cells[0], line)) for line in cells[2:]}


@pytest.mark.parametrize('launcher, workers, servers, partitions', [
    slow('horovodrun', 2, 1, None), ('horovodrun', 3, 2, {'embedding0': 5, 'decoder0': 3}), ('launch.py', 2, 2, None)])
def test_equals_one_process(expected, launcher, workers, servers, partitions):
    wanted = ','.join('*_%s_weight=%d' % item for item in (partitions or {}).items())
    result = run_job(BODY, launcher, workers=workers, servers=servers, timeout=120,
                     env={'MXHYBRID_PARTITIONS': wanted or None}).ok()
    assert_equals(expected, result, workers)
    for rank in range(workers):
        table = read_route_table(result.results[rank]['table'])
        assert {name: line['route'] for name, line in table.items()} == {
            name: 'server weights' if name in TABLES else 'allreduce' for name in expected['weights']}
        for name in TABLES:
            count = partitions[name.split('_')[1]] if partitions else servers
            assert table[name]['partitions'] == str(count)
            assert table[name]['servers'] == ','.join(map(str, range(servers)))
            # Only the rows of its own words and of the candidates travel, of 200 rows.
            assert 0 < int(table[name]['rows/step']) <= 12 * 6 // workers + 20


def test_one_process_without_launcher(expected):
    result = run_job(BODY, 'none', timeout=100).ok()
    assert_equals(expected, result, 1)
