import mxnet as mx
import pytest
from mxnet import autograd

from mxhybrid.native.recording import expect, has_gone_back, wants_gradient

pytestmark = pytest.mark.both_pythons


def test_what_wants_a_gradient():
    data, weight = mx.nd.ones(3), mx.nd.ones(3)
    weight.attach_grad()
    with autograd.record():
        product, double = data * weight, data * 2
    wanted = [wants_gradient(one) for one in (data, weight, product, double, product.detach(), mx.nd.ones(2))]
    assert wanted == [False, True, True, False, False, False]


def test_backward_passes_are_noticed():
    weight = mx.nd.ones(3)
    weight.attach_grad()
    expect(weight)
    with autograd.record():
        product = 2 * weight
    assert not has_gone_back(weight)
    product.backward()
    assert has_gone_back(weight)
    expect(weight)
    assert not has_gone_back(weight)
