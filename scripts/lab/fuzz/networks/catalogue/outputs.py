"""Output operators, which make a gradient of their own, and losses."""
from typing import Any

from .registry import entry

#: Losses of gluon by name: the values of which each sample has the mean.
_LOSSES = {
    'L2': 'F.square({0} - {1}) / 2.0',
    'L1': 'F.abs({0} - {1})',
    'Huber': 'F.where(F.abs({0} - {1}) > 0.5, F.abs({0} - {1}) - 0.25, F.square({0} - {1}))',
    'Sigmoid': "F.relu({0}) - {0} * {1} + F.Activation(-F.abs({0}), act_type='softrelu')",
    'Softmax': '-F.pick(F.log_softmax({0}, axis=-1), {1}, axis=-1, keepdims=True)',
    'KL': 'F.softmax({1}) * (F.log(F.softmax({1})) - F.log_softmax({0}))'}


@entry('LinearRegressionOutput', 'LogisticRegressionOutput', 'MAERegressionOutput', chance=0.5)
def _regression(drawing: Any) -> None:
    op, value = drawing.random.choice(('Linear', 'Logistic', 'MAE')) + 'RegressionOutput', drawing.pick()
    drawing.add(op, 'F.%s({0}, F.BlockGrad({1})%s)' % (op, ', grad_scale=0.5' * drawing.random.choice((0, 1))), value,
                drawing.same_as(value))


@entry('SoftmaxOutput', chance=1.0)
def _softmax_output(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(2, 3)
    more = random.choice(('', ", normalization='batch'", ", normalization='valid'",
                          ', use_ignore=True, ignore_label=1'))
    if len(drawing.shape(value)) == 3 or random.random() < 0.3:
        value, more = drawing.ranked(3), ', multi_output=True' + more
    shape = drawing.shape(value)
    labels = drawing.ids(shape[1], lambda other: other == shape[:1] + shape[2:])
    drawing.add('SoftmaxOutput', 'F.SoftmaxOutput({0}, {1}%s)' % more, value, labels)


@entry('Custom', chance=1.5)
def _custom(drawing: Any) -> None:
    """Call an operator of a user with values of several types."""
    inner = drawing.random.choice(('{0}', '{0}', "F.Cast(F.round({0} * 2.0), dtype='float16')"))
    code = 'F.Custom(%s, op_type=own_operator(%r))' % (inner, drawing.random.random() < 0.5)
    drawing.add('Custom', code if inner == '{0}' else "F.Cast(%s, dtype='float64')" % code, drawing.pick())


@entry('SVMOutput', chance=0.4)
def _svm(drawing: Any) -> None:
    value = drawing.ranked(2)
    count, length = drawing.shape(value)
    drawing.add('SVMOutput', 'F.SVMOutput({0}, {1}%s)' % drawing.random.choice(('', ', use_linear=True')), value,
                drawing.ids(length, lambda shape: shape == (count,)))


@entry('MakeLoss', 'make_loss', chance=0.8)
def _make_loss(drawing: Any) -> None:
    random, op = drawing.random, drawing.random.choice(('MakeLoss', 'make_loss'))
    reduced = random.choice(('{0}', 'F.mean({0})', 'F.sum({0}, axis=0)', 'F.mean({0}, axis=0, exclude=True)',
                             'F.sum({0})'))
    more = '' if op == 'make_loss' else random.choice(('', ', grad_scale=0.5', ", normalization='batch'",
                                                       ", normalization='valid'"))
    drawing.add(op, 'F.%s(%s%s)' % (op, reduced, more), drawing.pick())


@entry('CTCLoss', 'ctc_loss', 'contrib.CTCLoss', chance=0.5)
def _ctc(drawing: Any) -> None:
    value = drawing.pick(lambda shape: len(shape) == 3 and shape[2] > 1 and shape[0] > 1)
    times, samples, words = drawing.shape(value)
    # Equal labels in a row need a time between them; MXNet leaves the gradients of too few times as they were before
    # (compute_ctc_loss of cpu_ctc.h).
    labels = drawing.ids(words, lambda shape: len(shape) == 2 and shape[0] == samples and 2 * shape[1] - 1 <= times)
    drawing.add('CTCLoss', 'F.CTCLoss({0}, {1})', value, labels, single=True)


@entry('losses of gluon', chance=1.5)
def _losses(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick(lambda shape: len(shape) > 1)
    shape = drawing.shape(value)
    kind = random.choice(list(_LOSSES))
    other = drawing.same_as(value)
    if kind == 'Softmax':
        other = drawing.ids(shape[-1], lambda labels: labels == shape[:-1])
    drawing.add('losses of gluon', 'F.mean(%s, axis=0, exclude=True)' % _LOSSES[kind], value, other)
