"""Names of parameters without the numbers that gluon counts up."""
import pytest

from mxhybrid.kvstore.counted_names import without_counters


@pytest.mark.parametrize('first, second, are_equal', [
    (['dense0_weight', 'dense0_bias', 'dense1_weight'], ['dense3_weight', 'dense3_bias', 'dense17_weight'], True),
    (['net0_dense0_weight', 'net0_dense1_weight', 'net1_dense0_weight'],
     ['net4_dense0_weight', 'net4_dense1_weight', 'net9_dense0_weight'], True),
    (['net0_dense0_weight', 'net0_conv0_weight'], ['net0_dense5_weight', 'net0_conv2_weight'], True),
    (['_net2_weight'], ['_net11_weight'], True), ([], [], True),
    (['dense0_weight', 'dense1_weight'], ['dense1_weight', 'dense0_weight'], False),
    (['dense0_weight', 'dense0_bias'], ['dense0_weight', 'dense1_bias'], False),
    (['layer_weight'], ['other_weight'], False), (['layer_weight'], ['layer0_weight'], False),
    (['net0_dense0_weight', 'net1_dense0_weight'], ['net0_dense0_weight', 'net0_dense1_weight'], False),
    (['a_weight'], ['a_weight', 'b_weight'], False)])
def test_names_that_differ_in_counters_alone_are_equal(first, second, are_equal):
    assert (without_counters(first) == without_counters(second)) is are_equal


def test_numbers_are_counted_from_zero_in_their_order():
    assert without_counters(['dense7_weight', 'dense3_weight', 'x', '12']) == [
        'dense1_weight', 'dense0_weight', 'x', '0']
