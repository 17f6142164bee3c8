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


class GradientBuckets:
    """Answers about the buckets of the simulated tasks of a step, which fill `_buckets` as :func:`filled_buckets` does.
    """

    _buckets: Dict[str, Tuple[str, ...]]

    def is_in_bucket(self, name: str) -> bool:
        """Return whether the gradient of a weight is summed over all ranks, with others."""
        return name in self._buckets

    def summed_with(self, name: str) -> Tuple[str, ...]:
        """Return the weights whose gradients are summed together with that of a weight, itself included."""
        return self._buckets.get(name, (name,))

    def _bucket_name(self, name: str) -> str:
        """Return the name of the block in which the gradient of a weight is summed."""
        return self.summed_with(name)[0]

    def label_of(self, name: str) -> str:
        """Return the name of a weight, or of all that are summed together with it, for reports."""
        names = self.summed_with(name)
        return names[0] if len(names) == 1 else '%s to %s' % (names[0], names[-1])
