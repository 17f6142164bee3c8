"""MXNet's CustomOp without what operator.py of MXNet 1.9.1 does around each of its calls, which takes a third of a
millisecond: handles instead of arrays.
"""
import ctypes
from typing import Any, List, Optional

import mxnet as mx
from mxnet.base import _LIB, check_call

from .forks import gate

#: CustomOpFBFunc of include/mxnet/c_api.h: count, arrays, their tags, requests, is training, state.
_Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int),
                             ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_void_p)
_Callback = ctypes.CFUNCTYPE(ctypes.c_int)

#: Places of callbacks (``enum CustomOpCallbacks`` there), and tags of what is given and what is made (custom.cc).
_FORWARD, _BACKWARD = 1, 2
_TAGS = {_FORWARD: (0, 1), _BACKWARD: (3, 2)}
#: Of ``enum OpReqType``: to write.
_WRITES = (1, 2)


class DirectOperator(mx.operator.CustomOp):
    """A CustomOp whose calls go to :meth:`direct` where that is wanted and all it makes is to be written; else to
    `forward` and `backward`.
    """

    def __init__(self, is_direct: bool):
        super().__init__()
        self._is_direct = is_direct

    def direct(self, backward: bool, given: List[int], taken: List[int]) -> None:
        """Be called with the handles of inputs and outputs, or of the gradients of outputs and inputs.

        Inputs are computed; what writes outputs may be handed to the engine.  The handles are freed then.  It must not
        raise.
        """
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        # That is how operator.py keeps the callbacks that it has made for MXNet.
        if name == '_ref_holder' and self._is_direct:
            value = value + [self._replace(value[0][0], place) for place in (_FORWARD, _BACKWARD)]
        super().__setattr__(name, value)

    def _replace(self, made: Any, place: int) -> Any:
        usual = ctypes.cast(made.callbacks[place], _Function)
        given_tag, taken_tag = _TAGS[place]

        @_Function
        @gate.called_by_engine
        def call(count: int, arrays: Any, tags: Any, requests: Any, is_train: int, state: Optional[int]) -> int:
            given, taken = ([arrays[at] for at in range(count) if tags[at] == tag] for tag in (given_tag, taken_tag))
            if any(requests[at] not in _WRITES for at in range(len(taken))):
                return usual(count, arrays, tags, requests, is_train, state)
            self.direct(place == _BACKWARD, given, taken)
            for at in range(count):
                check_call(_LIB.MXNDArrayFree(ctypes.c_void_p(arrays[at])))
            return 1
        made.callbacks[place] = ctypes.cast(call, _Callback)
        return usual, call


def data_of(handle: int) -> Any:
    """Where the values of an array that is computed are."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(ctypes.c_void_p(handle), ctypes.byref(pointer)))
    return pointer.value
