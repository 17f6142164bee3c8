"""Errors of calls, and differences of split parameters from whole ones, which bodies of jobs report."""
import numpy as np

from mxhybrid import HybridError
from mxhybrid.kvstore.weight_shards import shard_of


def error_of(call, *args, kind=HybridError, **keywords):
    """Return the text of the error of a class that a call raises, '' for none."""
    try:
        call(*args, **keywords)
    except kind as error:
        return str(error)
    return ''


def problem_of(call, words, kind=HybridError):
    """Compare the error that a call raises with words that it should have; return the problem, '' for none."""
    said = error_of(call, kind=kind)
    missing = [word for word in words if word not in said]
    return '%r not in %r' % (missing, said) if missing else '' if said else 'nothing was refused'


def largest_difference(params, expected):
    """Compare the values that this worker holds of parameters with those of whole ones; both in the same order."""
    differences = [0.0]
    for param, whole in zip(params, expected):
        part = shard_of(param)
        if part is None or part.holds:
            mine, value = whole, param.data().asnumpy()
            if part is not None:  # a box has a range for each factor of a dimension
                apart = whole.reshape([count for factors in part._factors for count in factors])
                mine = apart[tuple(slice(*side) for side in part.box)].reshape(part.shape)
            assert mine.shape == value.shape, param.name
            differences.append(np.abs(mine - value).max())
    return float(np.max(differences))  # NaN if one of them is


def values_of(net):
    """Arrays of all parameters, in order."""
    return [param.data().asnumpy() for param in net.collect_params().values()]


def relative_difference(net, expected):
    """Return the largest difference of a network's parameters from whole ones, relative to the largest whole value."""
    return largest_difference(net.collect_params().values(), expected) / max(np.abs(one).max() for one in expected)
