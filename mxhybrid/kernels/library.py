"""The compiled library, which has the functions of the folders kernels, row_store and lane.  Calls release Python's
lock; errors become exceptions.

The files ``*api.cc`` define its functions.  ``setup.py`` compiles it if there is a compiler; if the library is missing,
:func:`load` says why.  Each of the three folders declares the parameters of its own functions, in its ``library.py``.
"""
import ctypes
import functools
import itertools
import math
import os
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..base.compiled import CompiledLibrary, compiled_files
from ..base.errors import JobError

#: The result that :func:`lane_version` of ``src/base/api.cc`` must have.
_VERSION = 44

#: Types of parameters and results.
U32, I64, U64, POINTER, INT = (ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int)
NUMBERS, COUNTS = ctypes.POINTER(U32), ctypes.POINTER(U64)
POINTERS, DOUBLES = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_double)

#: With fewer rows of the table than this for each id, a bitmap of the table costs less than sorting the ids.
_ROWS_PER_ID = 4096

#: The result and parameters of each function of this folder, by its name without ``lane_``.
_FUNCTIONS = {
    'error': (ctypes.c_char_p, []),
    'dtype_name': (ctypes.c_char_p, [U32]),
    'rule_name': (ctypes.c_char_p, [U32]),
    'rule_setting_name': (ctypes.c_char_p, [U32]),
    'transfer_operator_new': (POINTER, [POINTER, POINTER, INT, COUNTS, INT, COUNTS, POINTER, POINTER,
                                         POINTER]),
    'average_operator_new': (POINTER, [U32, COUNTS, U32, COUNTS, DOUBLES, COUNTS, COUNTS, COUNTS, DOUBLES,
                                        POINTER, POINTER]),
    'joint_norm_operator_new': (POINTER, [POINTER, POINTER, INT, COUNTS, U64, U32, DOUBLES, U32,
                                           ctypes.c_double, INT, INT, INT, POINTER, POINTER, POINTER]),
    'array_operator_close': (None, [POINTER]),
    'softmax_parts_operator_new': (POINTER, [INT, COUNTS, U64, POINTER, POINTER]),
    'softmax_operator_new': (POINTER, [INT, COUNTS, U64, U64, INT, POINTER, POINTER]),
    'array_operator_info': (POINTER, [POINTER]),
    'finite_halves': (INT, [POINTER, U64]),
    'delay_sigterm': (INT, [ctypes.c_double]),
    'sorted_unique': (I64, [POINTER, I64, I64, POINTER, POINTER]),
}


class Library:
    """The functions of the C interface as attributes, without ``lane_``."""

    def __init__(self, path: str):
        self.path = path
        self._loaded = CompiledLibrary(path, 'lane_version', _VERSION)
        self.declare(_FUNCTIONS, unchecked=('sorted_unique',))
        #: Numbers of the types of elements by NumPy's names, see ``src/base/dtype.h``.
        self.dtypes: Dict[str, int] = numbers_by_name(self.dtype_name)
        #: Numbers of update rules by name, see ``src/kernels/update.cc``.
        self.rules: Dict[str, int] = numbers_by_name(self.rule_name)
        self._rule_settings = list(numbers_by_name(self.rule_setting_name))

    def declare(self, functions: Mapping[str, Any], unchecked: Sequence[str] = ()) -> None:
        """Make attributes of functions, given the result and the parameters of each by its name without ``lane_``.

        They raise JobError if they fail, except `unchecked` ones, whose results -1 have another meaning.
        """
        for name, (result, parameters) in functions.items():
            function = getattr(self._loaded, 'lane_' + name)
            function.restype, function.argtypes = result, parameters
            if result in (INT, I64, POINTER) and name not in unchecked:
                function.errcheck = self._checked
            setattr(self, name, function)

    error: Callable[..., bytes]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def _checked(self, result: Any, *_: Any) -> Any:
        """Return the result of a function; raise JobError if it failed."""
        if result is None or result == -1:
            raise JobError('the lane failed: %s' % self.error().decode())
        return result

    def rule_settings(self, settings: Mapping[str, float]) -> Any:
        """Return the settings of an update rule for compiled functions."""
        names = self._rule_settings
        return (ctypes.c_double * len(names))(*[settings.get(name, -1.0 if name == 'clip' else 0.0) for name in names])


def numbers_by_name(name_of: Callable[[int], Any]) -> Dict[str, int]:
    """Return numbers by the names that a function of the library gives them, up to the first number without a name."""
    names = itertools.takewhile(lambda name: name is not None, map(name_of, itertools.count()))
    return {name.decode(): number for number, name in enumerate(names)}


def numbers(values: Sequence[int]) -> Any:
    """Return an array of uint32 for the library."""
    return (U32 * max(1, len(values)))(*values)


def counts(values: Sequence[int]) -> Any:
    """Return an array of uint64 for the library."""
    return (U64 * max(1, len(values)))(*values)


def memory_view(address: Optional[int], shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
    """View memory that stays as an array; an empty array may have no memory."""
    count = math.prod(shape)
    if not count or not address:
        return np.empty(shape, dtype)
    raw: Any = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype).reshape(shape)


@functools.lru_cache(maxsize=None)
def load() -> Library:
    """Return the library; raise OSError, which says what to do, if it is missing."""
    files = compiled_files(os.path.dirname(__file__), '_compiled')
    if not files:
        raise OSError('the compiled part of mxhybrid is missing: install g++ and then mxhybrid again, with '
                      'pip install --force-reinstall --no-deps')
    return Library(files[0])


@functools.lru_cache(maxsize=None)
def compiled() -> Optional[Library]:
    """Return the library, None if it is missing."""
    try:
        return load()
    except OSError:
        return None


def sorted_unique(ids: np.ndarray, rows: int) -> Optional[np.ndarray]:
    """Return the sorted distinct values of row ids, int64; None if one of them is not in 0 to `rows` - 1."""
    kernels = compiled() if len(ids) * _ROWS_PER_ID > rows else None
    if kernels is None:
        distinct_ids = np.unique(ids)
        return None if len(distinct_ids) and (distinct_ids[0] < 0 or distinct_ids[-1] >= rows) else distinct_ids
    ids = np.ascontiguousarray(ids)
    marks, distinct_ids = np.zeros(rows // 64 + 1, np.uint64), np.empty(len(ids), np.int64)
    count = kernels.sorted_unique(ids.ctypes.data, len(ids), rows, marks.ctypes.data, distinct_ids.ctypes.data)
    return None if count < 0 else distinct_ids[:count]
