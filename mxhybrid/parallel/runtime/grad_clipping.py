"""``gluon.utils.clip_global_norm`` where workers hold shards of weights: the norm is that of whole gradients."""
import functools
import warnings
import weakref
from typing import Any, Dict, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon

from ...kvstore.weight_shards import shard_of
from ..redistribution.worker_group import WorkerGroup

#: Parameters that are shards, whose gradients may be clipped.
_clipped: Any = weakref.WeakSet()


def _shards_of(arrays: Sequence[Any]) -> Dict[int, Any]:
    """Return the shards whose gradients are in `arrays`, by their positions there."""
    gradients = {param.grad().handle.value: shard_of(param) for param in _clipped if param.grad_req != 'null'}
    return {at: gradients[array.handle.value] for at, array in enumerate(arrays) if array.handle.value in gradients}


def clip_by_whole_norms(workers: WorkerGroup, params: Sequence[Any]) -> None:
    """Let ``clip_global_norm`` count the whole gradients of these shards from now on, each element once.

    It is collective if there is a shard among its arrays; gradients are those after ``allreduce_grads``.
    """
    for param in params:
        _clipped.add(param)
    original = gluon.utils.clip_global_norm
    if getattr(original, '_mxhybrid', False) or workers.size == 1:
        return

    @functools.wraps(original)
    def clip_global_norm(arrays: Sequence[Any], max_norm: float, check_isfinite: bool = True) -> Any:
        shards = _shards_of(arrays)
        if not workers.allreduce_scalar(float(len(shards))):
            return original(arrays, max_norm, check_isfinite)
        squares = [float(array.norm().asscalar()) ** 2 for array in arrays]
        whole = sum(square for at, square in enumerate(squares) if at not in shards)
        total = np.sqrt(whole + workers.allreduce_scalar(sum(squares[at]
                                                             for at, shard in shards.items() if shard.is_owner)))
        if check_isfinite and not np.isfinite(total):
            warnings.warn(UserWarning('nan or inf is detected. Clipping results will be undefined.'), stacklevel=2)
        scale = max_norm / (total + 1e-8)
        scale = 1.0 if scale >= 1.0 else scale  # NaN stays, as in gluon's
        for array in arrays:
            array *= scale
        return float(total) if check_isfinite else mx.nd.array([total], ctx=mx.cpu())
    clip_global_norm._mxhybrid = True  # type: ignore[attr-defined]
    gluon.utils.clip_global_norm = clip_global_norm
