import mxnet as mx
import pytest
from mxnet import autograd

from mxhybrid.native.recording import wants_gradient
from mxhybrid.native.trainers import is_fresh, set_fresh

pytestmark = pytest.mark.both_pythons


def test_arrays_that_want_a_gradient():
    data, weight = mx.nd.ones(3), mx.nd.ones(3)
    weight.attach_grad()
    with autograd.record():
        product, double = data * weight, data * 2
    wanted = [wants_gradient(one) for one in (data, weight, product, double, product.detach(), mx.nd.ones(2))]
    assert wanted == [False, True, True, False, False, False]


def test_backward_passes_are_noticed():
    weight = mx.nd.ones(3)
    weight.attach_grad()
    set_fresh(weight, False)
    with autograd.record():
        product = 2 * weight
    assert not is_fresh(weight)
    product.backward()
    assert is_fresh(weight)
    set_fresh(weight, False)
    assert not is_fresh(weight)
