"""The compiled library, whose functions the files ``api.cc`` and ``*_api.cc`` define.  Calls release Python's lock;
errors become exceptions.

``setup.py`` compiles it if there is a compiler; if the library is missing, :func:`load` says why.
"""
import ctypes
import functools
import itertools
import os
from typing import Any, Callable, Dict, List, Sequence

from ..base.compiled import CompiledLibrary, compiled_files
from ..base.errors import JobError

#: The result that :func:`lane_version` of ``kernels/src/base/api.cc`` must have.
_VERSION = 40

#: ``CallbackFunction``, ``FailedFunction``, ``ObserverFunction`` and ``StoreFunction`` of ``src/agent/agent_api.cc``.
Callback = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
Failed = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
Observer = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32)
StoreFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_U32, _I64, _U64, _POINTER, _INT = (ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int)
_NUMBERS = ctypes.POINTER(_U32)
_SHAPE = [_U64, _U32, _U32, _U32, _U32, _NUMBERS, _U32]
_DYNAMIC_SHAPE = [_U32, _U32, _U32, _U32, _U32, _NUMBERS, _U32]
_POINTERS, _DOUBLES = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_double)
_COUNTS = ctypes.POINTER(_U64)
_MEMBERSHIP = [_U32, _NUMBERS, _U32, _NUMBERS]

#: The result and parameters of each function, by its name without ``lane_``.
_FUNCTIONS = {
    'error': (ctypes.c_char_p, []),
    'dtype_name': (ctypes.c_char_p, [_U32]),
    'rule_name': (ctypes.c_char_p, [_U32]),
    'rule_setting_name': (ctypes.c_char_p, [_U32]),
    'agent_new': (_POINTER, [_U32] + _MEMBERSHIP + [Callback, Failed]),
    'agent_doorbell': (_INT, [_POINTER]),
    'agent_block': (_INT, [_POINTER]),
    'agent_connect': (_INT, [_POINTER, _U32, _INT]),
    'agent_add_worker': (_INT, [_POINTER, _U32, _INT]),
    'agent_add_table': (_INT, [_POINTER, _U32] + _SHAPE),
    'agent_add_dynamic_table': (_INT, [_POINTER, _U32, ctypes.c_char_p] + _DYNAMIC_SHAPE + [
        _U32, ctypes.c_double, _U64, _U32, _U64, _U64, _INT, ctypes.c_char_p, _U64]),
    'agent_with_store': (_INT, [_POINTER, _U32, _U32, StoreFunction]),
    'worker_add_dynamic_table': (_INT, [_POINTER, _U32] + _DYNAMIC_SHAPE),
    'agent_table': (_INT, [_POINTER, _U32]),
    'agent_attach': (_INT, [_POINTER, _U32, _U32, _INT]),
    'agent_drop_table': (_INT, [_POINTER, _U32]),
    'agent_open_allreduce': (_INT, [_POINTER, _U64, _U32, _U32, _U64, _INT]),
    'agent_open_ranges': (_INT, [_POINTER, _U64, _U32, _U32, _U64, _U32, _COUNTS, _INT]),
    'agent_open_quantized': (_INT, [_POINTER, _U64, _U32, _U64, _INT]),
    'agent_drop_allreduce': (_INT, [_POINTER, _U64]),
    'agent_shard': (_POINTER, [_POINTER, _U32, _U32]),
    'agent_set_rule': (_INT, [_POINTER, _U32, _U32, _U32, _U32, _DOUBLES]),
    'agent_set_state': (_INT, [_POINTER, _U32, _U32, _U32, _POINTER, _U64]),
    'agent_set_updates': (_INT, [_POINTER, _U32, _U32, _U64]),
    'agent_observe': (_INT, [_POINTER, Observer]),
    'agent_start': (_INT, [_POINTER]),
    'agent_close': (_INT, [_POINTER, _INT]),
    'agent_free': (None, [_POINTER]),
    'worker_new': (_POINTER, [_U32, _U32] + _MEMBERSHIP),
    'worker_block': (_INT, [_POINTER]),
    'worker_add_agent': (_INT, [_POINTER, _U32, _INT, _INT]),
    'worker_add_table': (_INT, [_POINTER, _U32] + _SHAPE),
    'worker_attach': (_INT, [_POINTER, _U32, _U32, _INT]),
    'worker_drop_table': (_INT, [_POINTER, _U32]),
    'worker_push': (_INT, [_POINTER, _U32, _POINTER, _U32, _POINTER, _INT, _U32]),
    'worker_post': (_INT, [_POINTER, _U32, _POINTER, _U32, _U32, _INT, _U32, _U32]),
    'worker_wait': (_INT, [_POINTER, _U32, _INT, _POINTER, _INT]),
    'delivery_new': (_POINTER, [_POINTER, _U32, _INT, _POINTER]),
    'worker_deliver': (None, [_POINTER, _POINTER, _POINTER]),
    'distinct_keys': (_INT, [_U32, _POINTERS, _COUNTS, _POINTER, _POINTER]),
    'sum_rows': (_INT, [_U32, _U64, _POINTER, _POINTER]),
    'write_rows': (_INT, [_U32, _U64, _POINTER, _POINTER]),
    'worker_push_tables': (_INT, [_POINTER, _POINTER, _U32, _INT]),
    'worker_post_tables': (_INT, [_POINTER, _POINTER, _NUMBERS, _U32, _POINTER]),
    'deliveries_new': (_POINTER, [_POINTER, _POINTER, _U32, _POINTER]),
    'worker_deliver_tables': (None, [_POINTER, _POINTER, _POINTER]),
    'worker_pull': (_INT, [_POINTER, _POINTER, _U32, _POINTER, _U32, _POINTERS, _U32, _INT, _U32]),
    'worker_lags': (_INT, [_POINTER, _U32, _COUNTS]),
    'worker_wait_for_deliveries': (_INT, [_POINTER, _U32, _INT]),
    'worker_overflows': (_INT, [_POINTER, _U32]),
    'worker_traffic': (_INT, [_POINTER, ctypes.POINTER(_U64), _U32]),
    'worker_cache_counts': (_INT, [_POINTER, _U32, _COUNTS]),
    'worker_allreduce_agent': (_INT, [_POINTER, _U64]),
    'worker_open_allreduce': (_INT, [_POINTER, _U64, _U32, _U64]),
    'worker_attach_allreduce': (_POINTER, [_POINTER, _U64, _INT]),
    'worker_drop_allreduce': (_INT, [_POINTER, _U64]),
    'allreduce_input': (_POINTER, [_POINTER]),
    'allreduce_output': (_POINTER, [_POINTER]),
    'allreduce_set_priority': (None, [_POINTER, ctypes.c_int32]),
    'allreduce_squares': (None, [_POINTER, _DOUBLES]),
    'allreduce_start': (None, [_POINTER, _POINTER, _POINTER]),
    'allreduce_scatter': (None, [_POINTER, _POINTER, _POINTER]),
    'allreduce_gather': (None, [_POINTER, _POINTER, _POINTER]),
    'agent_open_channel': (_INT, [_POINTER, _U32, _INT, _U32, _U32, _U32, _INT]),
    'worker_open_incoming': (_INT, [_POINTER, _U32, _U64]),
    'worker_open_outgoing': (_INT, [_POINTER, _U32, _U64]),
    'worker_link': (_INT, [_POINTER, _U32, _INT, _INT]),
    'worker_channel_agent': (_INT, [_POINTER, _U32, _U32]),
    'worker_link_by_agents': (_INT, [_POINTER, _U32, _U32]),
    'transfer_new': (_POINTER, [_POINTER, _U32, _U64, _U32, _INT, _U64]),
    'transfer_send': (_INT, [_POINTER, _U32, _U32, _COUNTS, _U64, _COUNTS]),
    'transfer_receive': (_INT, [_POINTER, _U32, _U32, _COUNTS, _U64, _COUNTS]),
    'transfer_copy_local': (_INT, [_POINTER, _U32, _COUNTS, _U64, _COUNTS, _U64, _COUNTS]),
    'transfer_fill': (_INT, [_POINTER, _U32, _COUNTS, _U64, _COUNTS, _U64]),
    'transfer_open': (_INT, [_POINTER]),
    'transfer_is_under_way': (_INT, [_POINTER]),
    'transfer_cancel': (None, [_POINTER]),
    'transfer_close': (None, [_POINTER]),
    'transfer_run_new': (_POINTER, [_POINTER, _POINTER, _POINTER]),
    'transfer_run_close': (None, [_POINTER]),
    'transfer_start': (None, [_POINTER, _POINTER, _POINTER]),
    'transfer_operator_new': (_POINTER, [_POINTER, _POINTER, _INT, _COUNTS, _INT, _COUNTS, _POINTER, _POINTER,
                                         _POINTER]),
    'transfer_operator_info': (_POINTER, [_POINTER]),
    'transfer_operator_close': (None, [_POINTER]),
    'moments_operator_new': (_POINTER, [_INT, _COUNTS, _U64, _POINTER, _POINTER]),
    'joint_operator_new': (_POINTER, [_U32, _DOUBLES, _U64, ctypes.c_double, _POINTER, _POINTER]),
    'average_operator_new': (_POINTER, [_U32, _COUNTS, _U32, _COUNTS, _DOUBLES, _COUNTS, _COUNTS, _COUNTS, _DOUBLES,
                                        _POINTER, _POINTER]),
    'joint_norm_operator_new': (_POINTER, [_POINTER, _POINTER, _INT, _COUNTS, _U64, _U32, _DOUBLES, _U32,
                                           ctypes.c_double, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER]),
    'array_operator_close': (None, [_POINTER]),
    'softmax_parts_operator_new': (_POINTER, [_INT, _COUNTS, _U64, _POINTER, _POINTER]),
    'softmax_operator_new': (_POINTER, [_INT, _COUNTS, _U64, _U64, _INT, _POINTER, _POINTER]),
    'array_operator_info': (_POINTER, [_POINTER]),
    'bucket_new': (_POINTER, [_POINTER, _U32, _INT, _POINTER, _POINTER, _U32, _POINTERS, ctypes.POINTER(_U64)]),
    'bucket_share': (_POINTER, [_POINTER]),
    'bucket_close': (None, [_POINTER]),
    'bucket_start': (None, [_POINTER, _POINTER, _POINTER]),
    'bucket_scatter': (None, [_POINTER, _POINTER, _POINTER]),
    'bucket_update': (None, [_POINTER, _POINTER]),
    'arrays_new': (_POINTER, [_POINTER, _POINTER, _POINTER, _U32, _POINTERS]),
    'arrays_close': (None, [_POINTER]),
    'update_new': (_POINTER, [_POINTER, _U32, _DOUBLES, _INT, _U32, _POINTERS, _POINTERS, _POINTER, _DOUBLES,
                              _DOUBLES]),
    'update_close': (None, [_POINTER]),
    'local_update_new': (_POINTER, [_POINTER, _U32, _U32, _DOUBLES, _INT, _U32, _POINTER, _COUNTS, _DOUBLES, _DOUBLES]),
    'local_update_close': (None, [_POINTER]),
    'local_update': (None, [_POINTER, _POINTER]),
    'copy_arrays': (_INT, [_POINTER, _POINTER, _U32, _POINTERS, _POINTERS]),
    'worker_close': (None, [_POINTER]),
    'receive_windows': (None, [_U32, _COUNTS, _COUNTS, ctypes.c_double, _U32, _POINTER, _POINTER]),
    'finite_halves': (_INT, [_POINTER, _U64]),
    'attribute': (ctypes.c_float, [ctypes.c_double, _INT]),
    'first_value_name': (ctypes.c_char_p, [_U32]),
    'first_values': (None, [_U32, ctypes.c_double, _U64, _U32, _POINTER, _U64, _U32, _POINTER]),
    'rule_state_width': (_U64, [_U32, _U32, _U32]),
    'partitions_of': (None, [_POINTER, _U64, _U32, _POINTER]),
    'row_store_new': (_POINTER, [_U32, _U32, _U32, ctypes.c_double, _U64, _U32, _U64, _U64, _INT, ctypes.c_char_p,
                                 _U64]),
    'row_store_close': (None, [_POINTER]),
    'row_store_set_state_bytes': (_INT, [_POINTER, _U64, _U64]),
    'row_store_set_updates': (None, [_POINTER, _U64]),
    'row_store_read': (_INT, [_POINTER, _POINTER, _U64, _POINTER]),
    'row_store_read_state': (_INT, [_POINTER, _U32, _POINTER, _U64, _POINTER]),
    'row_store_update': (_I64, [_POINTER, _U32, _U32, _DOUBLES, _POINTER, _POINTER, _U64]),
    'row_store_assign': (_INT, [_POINTER, _POINTER, _POINTER, _U64]),
    'row_store_assign_state': (_INT, [_POINTER, _U32, _POINTER, _POINTER, _U64]),
    'row_store_erase': (_I64, [_POINTER, _POINTER, _U64]),
    'row_store_clear': (_INT, [_POINTER]),
    'row_store_size': (_U64, [_POINTER]),
    'row_store_statistics': (None, [_POINTER, _COUNTS]),
    'row_store_restore': (_INT, [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _U64]),
    'row_store_waiting': (_I64, [_POINTER, _POINTER]),
    'row_store_restore_waiting': (_INT, [_POINTER, _POINTER, _POINTER, _U64]),
    'row_store_ages': (_U32, [_POINTER]),
    'row_store_clock': (_U32, [_POINTER]),
    'row_store_set_clock': (None, [_POINTER, _U32]),
    'row_store_mark': (_U32, [_POINTER]),
    'row_store_knows_changes': (_INT, [_POINTER, _U32]),
    'row_store_removed': (_I64, [_POINTER, _U32, _POINTER, _U64]),
    'row_scan_new': (_POINTER, [_POINTER, _I64, _U64]),
    'row_scan_close': (None, [_POINTER]),
    'row_scan_count': (_U64, [_POINTER]),
    'row_scan_next': (_I64, [_POINTER]),
    'row_scan_read': (_INT, [_POINTER, _POINTER]),
    'available_memory': (None, [ctypes.c_char_p, _COUNTS]),
    'start_write_back': (None, [_INT, _U64, _U64]),
    'delay_sigterm': (_INT, [ctypes.c_double]),
    'sorted_unique': (_I64, [_POINTER, _I64, _I64, _POINTER, _POINTER]),
    'read_row_ids': (_I64, [_POINTER, _POINTER, _I64, _I64, _POINTER]),
    'read_rows': (_I64, [_POINTER, _POINTER, _I64, _I64, _INT, _I64, _POINTER, _POINTER]),
}


class Library:
    """The functions of the C interface as attributes, without ``lane_``."""

    def __init__(self, path: str):
        self.path = path
        self._loaded = CompiledLibrary(path, 'lane_version', _VERSION)
        for name, (result, parameters) in _FUNCTIONS.items():
            function = getattr(self._loaded, 'lane_' + name)
            function.restype, function.argtypes = result, parameters
            setattr(self, name, function)
        #: Numbers of the types of elements by NumPy's names, see ``kernels/src/base/dtype.h``.
        self.dtypes: Dict[str, int] = {name: number for number, name in enumerate(_names(self.dtype_name))}
        #: Numbers of the kinds of first values by name, see ``row_store/src/store/first_values.h``.
        self.first_value_kinds: Dict[str, int] = {
            name: number for number, name in enumerate(_names(self.first_value_name))}
        #: Numbers of update rules by name, and names of their settings in order, see ``kernels/src/kernels/update.cc``.
        self.rules: Dict[str, int] = {name: number for number, name in enumerate(_names(self.rule_name))}
        self.rule_settings: List[str] = _names(self.rule_setting_name)

    error: Callable[..., bytes]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def checked(self, result: Any) -> Any:
        """Return the result of a function; raise JobError if it failed."""
        if result is None or result == -1:
            raise JobError('the lane failed: %s' % self.error().decode())
        return result


def _names(name_of: Callable[[int], Any]) -> List[str]:
    """Return the names that a function of the library gives by number, up to the first number without one."""
    names = itertools.takewhile(lambda name: name is not None, map(name_of, itertools.count()))
    return [name.decode() for name in names]


def numbers(values: Sequence[int]) -> Any:
    """Return an array of uint32 for the library."""
    return (_U32 * max(1, len(values)))(*values)


def counts(values: Sequence[int]) -> Any:
    """Return an array of uint64 for the library."""
    return (_U64 * max(1, len(values)))(*values)


@functools.lru_cache(maxsize=None)
def load() -> Library:
    """Return the library; raise OSError, which says what to do, if it is missing."""
    files = compiled_files(os.path.dirname(__file__), '_lane')
    if not files:
        raise OSError('the compiled part of mxhybrid is missing: install g++ and then mxhybrid again, with '
                      'pip install --force-reinstall --no-deps')
    return Library(files[0])
