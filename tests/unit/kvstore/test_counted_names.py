"""Names of parameters without the numbers that gluon counts up."""
import pytest

from mxhybrid.kvstore.counted_names import without_counters


@pytest.mark.parametrize('first, second', [
    (['dense0_weight', 'dense0_bias', 'dense1_weight'], ['dense3_weight', 'dense3_bias', 'dense17_weight']),
    (['net0_dense0_weight', 'net0_dense1_weight', 'net1_dense0_weight'],
     ['net4_dense0_weight', 'net4_dense1_weight', 'net9_dense0_weight']),
    (['net0_dense0_weight', 'net0_conv0_weight'], ['net0_dense5_weight', 'net0_conv2_weight']),
    (['_net2_weight'], ['_net11_weight']), ([], [])])
def test_names_that_differ_in_what_is_counted(first, second):
    assert without_counters(first) == without_counters(second)


@pytest.mark.parametrize('first, second', [
    (['dense0_weight', 'dense1_weight'], ['dense1_weight', 'dense0_weight']),
    (['dense0_weight', 'dense0_bias'], ['dense0_weight', 'dense1_bias']),
    (['layer_weight'], ['other_weight']), (['layer_weight'], ['layer0_weight']),
    (['net0_dense0_weight', 'net1_dense0_weight'], ['net0_dense0_weight', 'net0_dense1_weight']),
    (['a_weight'], ['a_weight', 'b_weight'])])
def test_names_that_differ_otherwise(first, second):
    assert without_counters(first) != without_counters(second)


def test_numbers_are_counted_from_zero_in_their_order():
    assert without_counters(['dense7_weight', 'dense3_weight', 'x', '12']) == [
        'dense1_weight', 'dense0_weight', 'x', '0']
