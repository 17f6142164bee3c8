"""wire_dtype by pattern over two hosts: int8, float16 and float32 in one job, with bounded errors."""
import numpy as np
import pytest
from lab.launchers import over_hosts

from . import BODIES

BODY = BODIES / 'rounded_values.py'
WORKERS = 3


@pytest.fixture(scope='module')
def result(cluster):
    return cluster.run(0, over_hosts([('hosta', 2), ('hostb', 1)], [BODY]), body=BODY).ok()


@pytest.fixture
def body(monkeypatch):
    """The module of the workers, for their gradients."""
    monkeypatch.syspath_prepend(str(BODIES))
    import rounded_values
    return rounded_values


def dense(body, ids, rows):
    full = np.zeros(body.SHAPE)
    full[ids] = rows
    return full


def sum_of_rows(body):
    """Return the exact sum of all gradients of rows."""
    return sum(dense(body, *body.gradient(rank, step)) for rank in range(WORKERS) for step in range(body.STEPS))


def test_first_values_are_exact_and_equal(body, result):
    first = result.results[0]
    for key in ('words', 'half_words', 'exact_words'):
        np.testing.assert_array_equal(first['tables'][key]['start'], body.start(0))
    for rank in range(1, WORKERS):
        for key, values in result.results[rank]['tables'].items():
            for name, array in values.items():
                np.testing.assert_array_equal(array, first['tables'][key][name], err_msg='%s %s' % (key, name))
        for key, array in result.results[rank]['totals'].items():
            np.testing.assert_array_equal(array, first['totals'][key])


def test_errors_of_rows_are_within_their_bounds_and_cancel(body, result):
    expected = body.start(0) - sum_of_rows(body)
    errors = {key: values['end'] - expected for key, values in result.results[0]['tables'].items()}
    # A pushed row rounds by less than a quantum, a 127th of its largest element, at most 5 a worker.
    quantum = 5 * 2 / 127
    assert np.abs(errors['exact_words']).max() < 1e-4
    assert 1e-4 < np.abs(errors['half_words']).max() < 0.02
    assert 0.01 < np.abs(errors['words']).max() < quantum * np.sqrt(body.STEPS)
    assert np.abs(errors['words'].mean()) < 5 * quantum / np.sqrt(errors['words'].size)
    ends = {key: values['end'] for key, values in result.results[0]['tables'].items()}
    pulled = {key: values['pulled'] for key, values in result.results[0]['tables'].items()}
    quanta = np.abs(ends['words']).max(axis=1, keepdims=True) / 127
    assert 0 < np.abs(pulled['words'] - ends['words']).max()
    assert (np.abs(pulled['words'] - ends['words']) <= 0.501 * quanta).all()
    np.testing.assert_array_equal(pulled['half_words'], ends['half_words'].astype('f2').astype('f4'))


def test_error_feedback_keeps_sums_within_a_quantum(body, result):
    totals = result.results[0]['totals']
    exact = sum(body.layer_gradient(rank, step).astype('f8') for rank in range(WORKERS) for step in range(body.STEPS))
    error = np.abs(totals['layer'] - exact).max()
    # The contribution of a host and the result keep at most half a quantum each of values up to 5 a worker.
    assert 1e-4 < error < 2 * 0.5 * 5 * WORKERS / 127
    embedding_error = totals['embedding'] - sum_of_rows(body)
    assert np.abs(embedding_error.mean()) < 0.01 and 0.01 < np.abs(embedding_error).max() < 2


def test_the_report_shows_rounding_and_impossible_calls_are_refused(result):
    tables, sums = result.results[0]['reports']
    assert 'float32 travels as float16; float32 travels as int8' in tables
    rounded = {line.split()[0]: line.split() for line in (tables + '\n' + sums).splitlines()
               if len(line.split()) == 8 and line.split()[1] in ('int8', 'float16')}
    assert sorted(rounded) == ['embedding', 'half_words', 'layer', 'words']
    assert rounded['layer'][-2:-1] == ['75%'] and 0 < float(rounded['layer'][-1].rstrip('%')) < 5
    assert rounded['words'][-1] == rounded['embedding'][-1] == '-'
    another, repartition, doubles = result.results[0]['problems']
    assert 'MXHYBRID_WIRE_DTYPE' in another and 'half*=float16,exact*=float32,*=int8' in another
    assert 'travel as int8' in repartition
    assert 'doubles is float64' in doubles and 'travel as int8, which rounds rows of float32 only' in doubles
