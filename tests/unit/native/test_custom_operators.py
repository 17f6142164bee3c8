"""Custom operators of which each needs other arrays in its backward pass."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid.native import custom_operators  # noqa: F401  the module under test changes MXNet

from ...helpers.custom_operators import register

register('needs_none', False, 1, 1)
register('needs_all', True, 1, 1)
register('needs_all_of_many', True, 3, 2)


@pytest.mark.parametrize('last', ['needs_none', 'needs_all', 'needs_all_of_many'])
@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_the_needs_of_an_operator_are_its_own(last, dtype):
    x = mx.nd.array([1, 2, 3], dtype=dtype)
    x.attach_grad()
    with mx.autograd.record():
        loss = mx.nd.Custom(x * 2, op_type='needs_none')
        mx.nd.Custom(*[x] * (3 if 'many' in last else 1), op_type=last)
    loss.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), (x.asnumpy() * 2 - 1) * 2)


def test_sparse_arrays_keep_their_type():
    storage_types = []

    class DenseCopy(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0].tostype('default'))

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            storage_types.extend(array.stype for array in (*in_data, *out_data))
            self.assign(in_grad[0], req[0], out_grad[0].tostype('row_sparse'))

    @mx.operator.register('dense_copy')
    class Properties(mx.operator.CustomOpProp):
        def infer_storage_type(self, in_stype):
            return ['row_sparse'], ['default'], []

        def infer_storage_type_backward(self, ograd_stype, in_stype, out_stype, igrad_stype, aux_stype):
            return ['default'], ['row_sparse'], ['default'], ['row_sparse'], []

        def create_operator(self, ctx, shapes, dtypes):
            return DenseCopy()

    x = mx.nd.ones((3, 2)).tostype('row_sparse')
    x.attach_grad(stype='row_sparse')
    with mx.autograd.record():
        copied = mx.nd.Custom(x, op_type='dense_copy')
        mx.nd.Custom(mx.nd.ones(3), op_type='needs_none')
    copied.backward(mx.nd.ones((3, 2)))
    np.testing.assert_array_equal(x.grad.asnumpy(), np.ones((3, 2)))
    assert storage_types == ['row_sparse', 'default']
