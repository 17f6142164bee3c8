"""The functions of row stores in the compiled library, which ``src/store/row_store_api.cc`` defines."""
import ctypes
import functools

from ..kernels import library
from ..kernels.library import COUNTS, DOUBLES, I64, INT, POINTER, U32, U64

#: The result and parameters of each function, by its name without ``lane_``.
_FUNCTIONS = {
    'partitions_of': (None, [POINTER, U64, U32, POINTER]),
    'row_store_new': (POINTER, [U32, U32, U32, ctypes.c_double, U64, U32, U64, U64, INT, ctypes.c_char_p,
                                 U64, U32]),
    'row_store_close': (None, [POINTER]),
    'row_store_set_state_bytes': (INT, [POINTER, U64, U64]),
    'row_store_set_updates': (None, [POINTER, U64]),
    'row_store_read': (INT, [POINTER, POINTER, U64, POINTER]),
    'row_store_read_state': (INT, [POINTER, U32, POINTER, U64, POINTER]),
    'row_store_update': (I64, [POINTER, U32, U32, DOUBLES, POINTER, POINTER, U64]),
    'row_store_assign': (INT, [POINTER, POINTER, POINTER, U64]),
    'row_store_assign_state': (INT, [POINTER, U32, POINTER, POINTER, U64]),
    'row_store_erase': (I64, [POINTER, POINTER, U64]),
    'row_store_clear': (INT, [POINTER]),
    'row_store_size': (U64, [POINTER]),
    'row_store_statistics': (None, [POINTER, COUNTS]),
    'row_store_restore': (INT, [POINTER, POINTER, POINTER, POINTER, POINTER, POINTER, POINTER, U64]),
    'row_store_waiting': (I64, [POINTER, POINTER]),
    'row_store_restore_waiting': (INT, [POINTER, POINTER, POINTER, U64]),
    'row_store_ages': (U32, [POINTER]),
    'row_store_clock': (U32, [POINTER]),
    'row_store_row_type': (U32, [POINTER]),
    'row_store_set_clock': (None, [POINTER, U32]),
    'row_store_mark': (U32, [POINTER]),
    'row_store_knows_changes': (INT, [POINTER, U32]),
    'row_store_removed': (I64, [POINTER, U32, POINTER, U64]),
    'row_scan_new': (POINTER, [POINTER, I64, U64]),
    'row_scan_close': (None, [POINTER]),
    'row_scan_count': (U64, [POINTER]),
    'row_scan_next': (I64, [POINTER]),
    'row_scan_read': (INT, [POINTER, POINTER]),
    'available_memory': (None, [ctypes.c_char_p, COUNTS]),
    'start_write_back': (None, [INT, U64, U64]),
}


@functools.lru_cache(maxsize=None)
def load() -> library.Library:
    """Return the library with these functions; raise OSError, which says what to do, if it is missing."""
    loaded = library.load()
    loaded.declare(_FUNCTIONS, unchecked=('row_store_waiting',))
    return loaded
