"""``gluon.utils.clip_global_norm`` where workers hold parts of weights: the norm is that of whole gradients."""
import functools
import warnings
import weakref
from typing import Any, Dict, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon

from ...kvstore.weight_shards import shard_of
from ..redistribution.worker_group import WorkerGroup

#: Parameters that are parts, of which gradients may be clipped.
_clipped: Any = weakref.WeakSet()


def _parts_of(arrays: Sequence[Any]) -> Dict[int, Any]:
    """By place in `arrays`, the parts whose gradients these are."""
    gradients = {param.grad().handle.value: shard_of(param) for param in _clipped if param.grad_req != 'null'}
    return {at: gradients[array.handle.value] for at, array in enumerate(arrays) if array.handle.value in gradients}


def clip_by_whole_norms(workers: WorkerGroup, params: Sequence[Any]) -> None:
    """From now on have the norm count what other workers hold of these parts' gradients, and each box once.

    Where there is a part among the arrays, the function is collective; gradients are those after ``allreduce_grads``.
    """
    for param in params:
        _clipped.add(param)
    original = gluon.utils.clip_global_norm
    if getattr(original, '_mxhybrid', False) or workers.size == 1:
        return

    @functools.wraps(original)
    def clip_global_norm(arrays: Sequence[Any], max_norm: float, check_isfinite: bool = True) -> Any:
        found = _parts_of(arrays)
        if not workers.allreduce_scalar(float(len(found))):
            return original(arrays, max_norm, check_isfinite)
        squares = [float(array.norm().asscalar()) ** 2 for array in arrays]
        whole = sum(square for at, square in enumerate(squares) if at not in found)
        total = np.sqrt(whole + workers.allreduce_scalar(sum(squares[at]
                                                             for at, shard in found.items() if shard.speaks)))
        if check_isfinite and not np.isfinite(total):
            warnings.warn(UserWarning('nan or inf is detected. Clipping results will be undefined.'), stacklevel=2)
        scale = max_norm / (total + 1e-8)
        scale = 1.0 if scale >= 1.0 else scale  # NaN stays, as in gluon's
        for array in arrays:
            array *= scale
        return float(total) if check_isfinite else mx.nd.array([total], ctx=mx.cpu())
    clip_global_norm._mxhybrid = True  # type: ignore[attr-defined]
    gluon.utils.clip_global_norm = clip_global_norm
