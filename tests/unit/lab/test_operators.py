"""The page of operators is that of the rules, and MXNet's gradients are found."""
import mxnet as mx
import numpy as np
import pytest
from lab import operators


def test_the_page_is_that_of_the_rules():
    assert operators.PAGE.read_text() == operators.page(), 'run scripts/operators, which writes docs/operators.md'


@pytest.fixture(scope='module')
def registered():
    return operators.with_gradient()


@pytest.mark.parametrize('name', ['Convolution', 'BatchNorm', 'RNN', 'ROIPooling', '_linalg_det', 'take', 'sort',
                                  'Pooling', 'gather_nd', '_npi_tanh', 'Custom'])
def test_an_operator_with_a_gradient(registered, name):
    assert not registered[name].is_zero


@pytest.mark.parametrize('name', ['batch_take', '_arange', 'khatri_rao', '_histogram', '_foreach', 'sgd_update',
                                  '_backward_Convolution', 'reset_arrays'])
def test_an_operator_without_a_gradient_or_outside_of_networks(registered, name):
    assert name not in registered


def test_other_names(registered):
    assert registered['reverse'].aliases == ('flip',)
    assert registered['floor'].is_zero


def test_a_gradient_of_the_registry_is_one_of_autograd(registered):
    data = mx.nd.array(np.arange(4.0))
    data.attach_grad()
    with mx.autograd.record():
        outputs = mx.nd.floor(data) + mx.nd.square(data)
    outputs.backward()
    np.testing.assert_array_equal(data.grad.asnumpy(), 2 * np.arange(4.0))
    assert registered['floor'].is_zero and not registered['square'].is_zero
