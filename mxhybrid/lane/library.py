"""The functions of agents and workers in the compiled library, which the files ``*api.cc`` in ``src/`` define."""
import ctypes
import functools

from ..kernels.library import COUNTS, DOUBLES, I64, INT, NUMBERS, POINTER, POINTERS, U32, U64, Library, counts, numbers
from ..row_store import library as row_store_library

__all__ = ['Callback', 'Failed', 'Observer', 'StoreFunction', 'counts', 'load', 'numbers']

#: ``CallbackFunction``, ``FailedFunction``, ``ObserverFunction`` and ``StoreFunction`` of ``src/agent/agent_api.cc``.
Callback = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
Failed = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
Observer = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32)
StoreFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_SHAPE = [U64, U32, U32, U32, U32, U32, NUMBERS, U32]
_MEMBERSHIP = [U32, NUMBERS, U32, NUMBERS]

#: The result and parameters of each function, by its name without ``lane_``.
_FUNCTIONS = {
    'agent_new': (POINTER, [U32] + _MEMBERSHIP + [Callback, Failed]),
    'agent_doorbell': (INT, [POINTER]),
    'agent_block': (INT, [POINTER]),
    'agent_connect': (INT, [POINTER, U32, INT]),
    'agent_add_worker': (INT, [POINTER, U32, INT]),
    'agent_add_table': (INT, [POINTER, U32] + _SHAPE),
    'agent_add_dynamic_table': (INT, [POINTER, U32, ctypes.c_char_p] + _SHAPE + [
        U32, ctypes.c_double, U64, U32, U64, U64, INT, ctypes.c_char_p, U64, U32]),
    'agent_with_store': (INT, [POINTER, U32, U32, StoreFunction]),
    'agent_table': (INT, [POINTER, U32]),
    'agent_attach': (INT, [POINTER, U32, U32, INT]),
    'agent_drop_table': (INT, [POINTER, U32]),
    'agent_open_allreduce': (INT, [POINTER, U64, U32, U32, U64, U32, COUNTS, INT, INT]),
    'agent_drop_allreduce': (INT, [POINTER, U64]),
    'agent_shard': (POINTER, [POINTER, U32, U32]),
    'agent_set_rule': (INT, [POINTER, U32, U32, U32, U32, DOUBLES]),
    'agent_set_state': (INT, [POINTER, U32, U32, U32, POINTER, U64]),
    'agent_set_updates': (INT, [POINTER, U32, U32, U64]),
    'agent_observe': (INT, [POINTER, Observer]),
    'agent_start': (INT, [POINTER]),
    'agent_close': (INT, [POINTER, INT]),
    'agent_free': (None, [POINTER]),
    'worker_new': (POINTER, [U32, U32] + _MEMBERSHIP),
    'worker_block': (INT, [POINTER]),
    'worker_add_agent': (INT, [POINTER, U32, INT, INT]),
    'worker_add_table': (INT, [POINTER, U32] + _SHAPE),
    'worker_attach': (INT, [POINTER, U32, U32, INT]),
    'worker_drop_table': (INT, [POINTER, U32]),
    'worker_push': (INT, [POINTER, U32, POINTER, U32, POINTER, INT, U32]),
    'worker_post': (INT, [POINTER, U32, POINTER, U32, U32, U32, U32]),
    'worker_wait': (INT, [POINTER, U32, INT, POINTER, INT]),
    'distinct_keys': (INT, [U32, POINTERS, COUNTS, POINTER, POINTER]),
    'sum_rows': (INT, [U32, U64, POINTER, POINTER]),
    'write_rows': (INT, [U32, U64, POINTER, POINTER]),
    'worker_push_tables': (INT, [POINTER, POINTER, U32, INT]),
    'worker_post_tables': (INT, [POINTER, POINTER, NUMBERS, U32, POINTER]),
    'deliveries_new': (POINTER, [POINTER, POINTER, U32, POINTER]),
    'worker_deliver_tables': (None, [POINTER, POINTER, POINTER]),
    'worker_pull': (INT, [POINTER, POINTER, U32, POINTER, U32, POINTERS, U32, INT, U32]),
    'worker_lags': (INT, [POINTER, U32, COUNTS]),
    'worker_wait_for_deliveries': (INT, [POINTER, U32, INT]),
    'worker_overflows': (INT, [POINTER, U32]),
    'worker_traffic': (None, [POINTER, COUNTS]),
    'worker_cache_counts': (INT, [POINTER, U32, COUNTS]),
    'worker_allreduce_agent': (INT, [POINTER, U64]),
    'worker_open_allreduce': (INT, [POINTER, U64, U32, U64]),
    'worker_attach_allreduce': (POINTER, [POINTER, U64, INT]),
    'worker_drop_allreduce': (INT, [POINTER, U64]),
    'allreduce_input': (POINTER, [POINTER]),
    'allreduce_output': (POINTER, [POINTER]),
    'allreduce_set_priority': (None, [POINTER, ctypes.c_int32]),
    'allreduce_squares': (None, [POINTER, DOUBLES]),
    'allreduce_start': (None, [POINTER, POINTER, POINTER]),
    'allreduce_scatter': (None, [POINTER, POINTER, POINTER]),
    'allreduce_gather': (None, [POINTER, POINTER, POINTER]),
    'agent_open_channel': (INT, [POINTER, U32, INT, U32, U32, U32, INT]),
    'worker_open_channel': (INT, [POINTER, U32, INT, U64]),
    'worker_link': (INT, [POINTER, U32, INT, INT]),
    'worker_channel_agent': (INT, [POINTER, U32, U32]),
    'worker_link_by_agents': (INT, [POINTER, U32, U32]),
    'transfer_new': (POINTER, [POINTER, U32, U64, U32, INT, U64]),
    'transfer_send': (INT, [POINTER, U32, U32, COUNTS, U64, COUNTS]),
    'transfer_receive': (INT, [POINTER, U32, U32, COUNTS, U64, COUNTS]),
    'transfer_copy_local': (INT, [POINTER, U32, COUNTS, U64, COUNTS, U64, COUNTS]),
    'transfer_fill': (INT, [POINTER, U32, COUNTS, U64, COUNTS, U64]),
    'transfer_open': (INT, [POINTER]),
    'transfer_is_under_way': (INT, [POINTER]),
    'transfer_cancel': (None, [POINTER]),
    'transfer_close': (None, [POINTER]),
    'transfer_run_new': (POINTER, [POINTER, POINTER, POINTER]),
    'transfer_run_close': (None, [POINTER]),
    'transfer_start': (None, [POINTER, POINTER, POINTER]),
    'bucket_new': (POINTER, [POINTER, U32, INT, POINTER, POINTER, U32, POINTERS, COUNTS]),
    'bucket_share': (POINTER, [POINTER]),
    'bucket_close': (None, [POINTER]),
    'bucket_start': (None, [POINTER, POINTER, POINTER]),
    'bucket_scatter': (None, [POINTER, POINTER, POINTER]),
    'arrays_new': (POINTER, [POINTER, POINTER, POINTER, U32, POINTERS]),
    'arrays_close': (None, [POINTER]),
    'update_new': (POINTER, [POINTER, U32, U32, DOUBLES, INT, U32, POINTER, COUNTS, DOUBLES, DOUBLES]),
    'update_close': (None, [POINTER]),
    'update_run': (None, [POINTER, POINTER]),
    'copy_arrays': (INT, [POINTER, U32, POINTERS, POINTERS]),
    'worker_close': (None, [POINTER]),
    'read_row_ids': (I64, [POINTER, POINTER, I64, I64, POINTER]),
    'read_rows': (I64, [POINTER, POINTER, I64, I64, INT, I64, POINTER, POINTER]),
}


@functools.lru_cache(maxsize=None)
def load() -> Library:
    """Return the library with these functions and those of row stores; raise OSError, which says what to do, if it is
    missing.
    """
    loaded = row_store_library.load()
    loaded.declare(_FUNCTIONS, unchecked=('copy_arrays', 'read_row_ids', 'read_rows'))
    return loaded
