"""The form in which rows of a table travel between hosts, ``enum RowFormat`` of ``src/memory/shared.h``."""
import enum

import numpy as np

#: Bytes of the scale of a row that travels as int8.
_SCALE_BYTES = 4


class RowFormat(enum.IntEnum):
    """The form of rows between hosts; all but EXACT round float32."""

    EXACT = 0
    FLOAT16 = 1
    #: A scale for each row.  Pushed rows are rounded at random, pulled rows to nearest.
    INT8 = 2
    #: The same for a table of sums of gradients: pulled rows are rounded at random, too.
    INT8_SUMS = 3

    def row_bytes(self, width: int, dtype: np.dtype) -> int:
        """Return the bytes of a row of `width` elements."""
        if self in (RowFormat.INT8, RowFormat.INT8_SUMS):
            return width + _SCALE_BYTES
        return width * (2 if self is RowFormat.FLOAT16 else dtype.itemsize)


def row_format(dtype: np.dtype, wire_dtype: np.dtype, width: int, sums: bool = False) -> RowFormat:
    """Return the form of rows of type `dtype` that travel as `wire_dtype`.

    Rows of one element are never int8, which would need 5 bytes.  `sums` tells that rows are sums of gradients.
    """
    if wire_dtype == np.int8 and dtype == np.float32 and width > 1:
        return RowFormat.INT8_SUMS if sums else RowFormat.INT8
    return RowFormat.FLOAT16 if wire_dtype == np.float16 and dtype == np.float32 else RowFormat.EXACT
