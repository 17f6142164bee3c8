"""Custom operators of sums, which need different arrays in their backward passes."""
import mxnet as mx


def register(name, needs_gradient, inputs, outputs, states=0):
    """Register an operator of sums, and return its properties; without the gradient of its outputs, it is a loss."""
    class Sums(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            total = mx.nd.add_n(*in_data, *aux)
            for position, target in enumerate(out_data):
                self.assign(target, req[position], (position + 1) * total)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            gradient = (in_data[0] + out_data[0]) / 2 - 1
            if needs_gradient:
                gradient = mx.nd.add_n(*[(position + 1) * array for position, array in enumerate(out_grad)])
            for request, target in zip(req, in_grad):
                self.assign(target, request, gradient)

    @mx.operator.register(name)
    class Properties(mx.operator.CustomOpProp):
        def __init__(self):
            super().__init__(need_top_grad=needs_gradient)

        def list_arguments(self):
            return ['input%d' % at for at in range(inputs)]

        def list_outputs(self):
            return ['output%d' % at for at in range(outputs)]

        def list_auxiliary_states(self):
            return ['state%d' % at for at in range(states)]

        def infer_shape(self, in_shape):
            return in_shape, [in_shape[0]] * outputs, [in_shape[0]] * states

        def create_operator(self, ctx, shapes, dtypes):
            return Sums()
    return Properties
