"""Gradient buckets: dense gradients that are summed together over all ranks."""
from typing import Dict, List, Mapping, Sequence, Tuple

#: The bytes of a gradient bucket, as in :mod:`mxhybrid.routes.dense_buckets`.
BUCKET_BYTES = 2 << 20


def filled_buckets(names: Sequence[str], bytes_of: Mapping[str, int]) -> Dict[str, Tuple[str, ...]]:
    """Return by the name of each weight the names of all weights of its bucket, which fill them in their order."""
    buckets: List[List[str]] = []
    room_bytes = 0
    for name in names:
        if not buckets or bytes_of[name] > room_bytes:
            buckets.append([])
            room_bytes = BUCKET_BYTES
        buckets[-1].append(name)
        room_bytes -= bytes_of[name]
    return {name: tuple(bucket) for bucket in buckets for name in bucket}
