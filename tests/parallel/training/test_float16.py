"""wire_dtype=float16 rounds only where this is documented, and errors stay within the bounds that follow."""
import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers import comparing, rounding
from ...helpers.joint_jobs import body, run_together
from . import BODIES
from .bodies import wire

BODY = BODIES / 'wire.py'
HALF = {'MXHYBRID_WIRE_DTYPE': 'float16'}
#: Cases of train.py.
CASES = 'dense-momentum,gradient-sgd-momentum,weight-sgd-notlazy,weight-adam,trainers'


@pytest.fixture(scope='module')
def alone():
    """The results of one process: for two workers, exact and rounded as by ps-lite; for three as by the lane."""
    results = run_together({
        'exact': body(BODY, '--alone', 2), 'apart': body(BODY, '--alone', 2, '--rounded', 'apart'),
        'pulled': body(BODY, '--alone', 3, '--rounded', 'pulled')}, 'none', timeout=100)
    return {name: result.results[0] for name, result in results.items()}


def two_workers(transport, directory):
    return run_job(BODY, 'horovodrun', workers=2, servers=2, env={'MXHYBRID_ROW_TRANSPORT': transport}, timeout=120,
                   args=['--wire', 'float16', '--partitions', 3, '--extra', '--directory', directory]).ok()


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """The results of two workers, each with its own link to the servers."""
    return two_workers('ps-lite', tmp_path_factory.mktemp('apart'))


@pytest.fixture
def on_the_lane(tmp_path):
    return two_workers('lane', tmp_path)


@pytest.fixture(scope='module')
def three(tmp_path_factory):
    """The results of three workers with the lane."""
    return run_together({
        'wire': body(BODY, '--wire', 'float16', '--directory', tmp_path_factory.mktemp('pulled'), '--partitions', 4),
        'train': body(BODIES / 'train.py', '--cases', CASES)},
        'launch.py', workers=3, servers=2, timeout=200, env=HALF)


def assert_found(expected, result, kind='outcomes'):
    """Compare values bit for bit, on every worker; only worker 0 has optimizer state."""
    for rank, values in result.results.items():
        for case, arrays in expected.items():
            for name, array in arrays.items():
                if rank == 0 or not name.startswith('state'):
                    assert values[kind][case][name].dtype == array.dtype
                    np.testing.assert_array_equal(values[kind][case][name], array,
                                                  err_msg='%s: %s on rank %d' % (case, name, rank))


def sums(key, workers):
    """Yield each step, the rows that any worker touches, and all workers' gradients in float64."""
    for step in range(wire.STEPS):
        parts, touched = wire.gradients(key, step, workers)
        yield '%02d' % step, touched, [part.astype('f8') for part in parts]


def test_no_other_roundings_than_those_documented(alone, together):
    assert sorted(together.results) == [0, 1]
    result = alone['apart']
    expected = result['outcomes']
    assert {'adam', 'sgd-notlazy', 'rmsprop', 'replaced', 'rows', 'dense', 'half-rows', 'half-dense'} < set(expected)
    assert_found(expected, together)
    assert_found(result['by_allreduce'], together, 'by_allreduce')  # a table moved there in mid-training, unrounded


def test_local_rows_on_the_lane_are_rounded_when_pulled(alone, three):
    result = three['wire']
    assert sorted(result.results) == [0, 1, 2]
    expected = alone['pulled']['outcomes']
    dense = {'dense': 12, 'half-dense': 14}  # each worker's part is rounded, and then the sum
    assert_found({case: expected[case] for case in set(expected) - set(dense)}, result)
    for case, key in dense.items():
        for step, _, parts in sums(key, 3):
            total = sum(part.astype('f2').astype('f4') for part in parts).astype('f2')
            assert (np.abs(total.astype('f8') - sum(parts)) <= rounding.sum_bound(parts)).all()
            for rank in range(3):
                np.testing.assert_array_equal(result.results[rank]['outcomes'][case][step], total)


def test_errors_stay_within_the_bounds_that_follow_from_float16(alone, together):
    rounded, exact = together.results[1]['outcomes'], alone['exact']['outcomes']
    for key, name, model in ((0, 'sgd', rounding.Sgd(wire.SHAPE, 0.1, 0.9)),
                             (1, 'adam', rounding.Adam(wire.SHAPE, 0.01))):
        for _, touched, parts in sums(key, 2):
            total, bound = sum(parts) / 2, rounding.servers_bound(parts) / 2  # rescale_grad is 1/2
            model.step(touched, total[touched], bound[touched])
        exact_end, end = exact[name]['end'].astype('f8'), rounded[name]['end'].astype('f8')
        slack = comparing.TOLERANCE['atol'] + 10 * comparing.TOLERANCE['rtol'] * np.abs(exact_end)
        assert (np.abs(end - exact_end) <= model.error + slack).all()
        assert np.abs(end - exact_end).max() > 10 * slack.min()  # without rounding this test would find nothing
        small = np.abs(end) < 65000
        assert (np.abs(rounded[name]['pulled'] - end) <= rounding.pull_bound(end))[small].all()
    for step, _, parts in sums(11, 2):
        bound = rounding.servers_bound(parts)
        error = np.abs(rounded['rows'][step] - sum(parts))
        assert (error <= bound + rounding.pull_bound(np.abs(sum(parts)) + bound)).all()
    for step, _, parts in sums(12, 2):
        assert (np.abs(rounded['dense'][step] - sum(parts)) <= rounding.sum_bound(parts)).all()


@pytest.mark.parametrize('transport', ['ps-lite', 'lane'])
def test_overflow_reaches_the_weights_and_warns_by_name(request, transport):
    result = request.getfixturevalue({'ps-lite': 'together', 'lane': 'on_the_lane'}[transport])
    for values in result.results.values():
        for key in ('90', '91'):
            np.testing.assert_array_equal(values['warned'][key], [[-np.inf] * 6, [0] * 6])
    for name, what in (('table_one', 'gradients pushed'), ('table_both', 'rows pulled'), ('layer', 'summed gradients')):
        said = [line for line in result.output.splitlines()
                if name in line and what in line and 'wire_dtype=float16' in line]
        assert 0 < len(said) <= 2, (name, said)


def test_other_settings_types_and_cuts_are_refused(together):
    for values in together.results.values():
        setting, unknown, double, half, pushed, cut = values['problems']
        assert "MXHYBRID_WIRE_DTYPE='float32'" in setting and 'float16' in setting
        assert "wire_dtype='bfloat16'" in unknown and "'float32', 'float16' or 'int8'" in unknown
        assert '95 is float64' in double and '96 is float16' in half and '97 is float64' in pushed
        assert all('leave MXHYBRID_WIRE_DTYPE out' in text for text in (double, half, pushed, cut))
        assert 'the rows of 98 travel as float16' in cut


def test_report_counts_what_travels(together):
    weights, rows, dense = (together.results[0]['reports'][index] for index in (0, 4, 5))
    assert all('float32 travels as float16' in text.splitlines()[0] for text in (weights, rows, dense))
    routes, rounded = dense.split('\n\n')
    assert routes.split()[-4:] == ['276', 'B', '276', 'B']  # 2 (N - 1) / N of 23 x 6 elements of two bytes
    assert rounded.split()[-6:] == ['552', 'B', '552', 'B', '50%', '-']  # both ways, and as many bytes saved


def test_training_comes_close_to_float32(three):
    workers = 3
    expected = comparing.reference(BODIES / 'train.py', '--cases', CASES)
    result = three['train']
    assert sorted(result.results) == list(range(workers))
    for case in CASES.split(','):
        errors = []
        for name, values in expected[case].items():
            # Updates of a parameter, and values that are read, are below 1 and were rounded N + 1 times at most.
            assert np.abs(values).max() < 1
            np.testing.assert_allclose(result.results[0][case][name], values, rtol=0,
                                       atol=(workers + 1) * rounding.U, err_msg='%s: %s' % (case, name))
            errors.append(np.abs(result.results[0][case][name] - values).max())
            for rank in range(1, workers):
                np.testing.assert_array_equal(result.results[rank][case][name], result.results[0][case][name])
        assert max(errors) > comparing.TOLERANCE['atol']  # it did travel as float16


def test_resumed_training_keeps_bits_and_skips_overflow(tmp_path):
    kinds = ('weight/adam', 'gradient/adam')
    scaled = ('overflow/weight', 'overflow/gradient')
    cases = ['%s/%s' % (what, kind) for kind in kinds for what in ('save', 'resume')]
    cases += ['restore/' + kind for kind in kinds]
    # Step 10 may take a table to allreduce, which rounds otherwise; that is measured, so it would come and go.
    result = run_job(BODIES / 'promises.py', 'horovodrun', workers=2, env=dict(HALF, MXHYBRID_ROUTES='servers'),
                     timeout=120, args=['--directory', tmp_path, '--cases', ','.join(cases + list(scaled))]).ok()
    for values in result.results.values():
        for kind in kinds:
            comparing.assert_same_bits(values['save/' + kind], values['resume/' + kind], kind)
            comparing.assert_same_bits(values['save/' + kind], values['restore/' + kind], kind)
        for case in scaled:
            assert all(np.isfinite(array).all() for array in values[case].values())
            # Scaled by 2^16 at first, gradients overflow as float16: all workers skip these steps. The last one does
            # not, so it was not for the two gradients that were infinite from the start only.
            scales = values[case]['scales']
            assert scales[0] == 2 ** 16 and (scales[:4] > scales[1:5]).all() and scales[-1] == scales[-2]
    # Where servers update weights such steps are skipped before anything travels: in the first of the two models.
    warned = [line for line in result.output.splitlines() if 'have infinite elements' in line]
    assert [line for line in warned if 'model1_' in line] and not [line for line in warned if 'model0_' in line]
