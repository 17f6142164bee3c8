"""The exchange by PyTorch over Gloo: all workers share the rows of each table, and look up and update them by alltoall.

This is TorchRec's row-wise sharding (Ivchenko et al., RecSys 2022), written here with ``torch.distributed`` alone.
Row r belongs to worker r mod N; TorchRec gives each worker a block of neighbouring rows, which would put the frequent
rows of a vocabulary on one worker.  Dense gradients are summed as DistributedDataParallel does it, in flat buckets of
25 MB.
"""
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .gradients import Checksum, checksum, dense_value, row_pattern
from .workloads import BATCHES, Table, Workload

_BUCKET_BYTES = 25 << 20


class TorchSharded:
    """A worker's part; the methods are those of `contenders.Contender`."""

    def __init__(self, workload: Workload, rank: int, size: int):
        self.workload, self.rank, self.size = workload, rank, size
        self.phases: Dict[str, float] = {}

    def start(self) -> None:
        """Join the other workers; make this worker's shards and gradients."""
        torch.set_num_threads(1)
        dist.init_process_group('gloo', rank=self.rank, world_size=self.size)
        self._shards = {table.name: torch.zeros(-(-table.rows // self.size), table.width)
                        for table in self.workload.tables}
        self._dense = [torch.full(parameter.shape, dense_value(self.rank, index))
                       for index, parameter in enumerate(self.workload.dense)]
        self._weights = [torch.zeros(parameter.shape) for parameter in self.workload.dense]
        self._lookups: List[Dict[str, Tuple[Any, Any, List[int], Any]]] = [{} for _ in range(BATCHES)]
        for batch in range(BATCHES):
            for name, drawn in self.workload.draw(batch, self.rank).items():
                self._prepare(batch, name, np.unique(drawn))

    def _prepare(self, batch: int, name: str, ids: np.ndarray) -> None:
        """Sort a batch's unique ids by owner, as the input pipeline does."""
        owners = ids % self.size
        order = np.argsort(owners, kind='stable')
        counts = np.bincount(owners, minlength=self.size)
        width = self._shards[name].shape[1]
        self._lookups[batch][name] = (torch.from_numpy(ids[order] // self.size), order, counts.tolist(),
                                      torch.from_numpy(row_pattern(self.rank, len(ids), width)))

    def _pull(self, batch: int) -> Dict[str, Tuple[Any, Any, List[int]]]:
        """Look rows up; return by table the rows, and the rows that other workers requested from this worker."""
        pulled = {}
        for table in self.workload.tables:
            row_ids, _, counts, _ = self._lookups[batch][table.name]
            asked_counts = torch.empty(self.size, dtype=torch.int64)
            dist.all_to_all_single(asked_counts, torch.tensor(counts))
            asked_splits = asked_counts.tolist()
            asked = torch.empty(sum(asked_splits), dtype=torch.int64)
            dist.all_to_all_single(asked, row_ids, asked_splits, counts)
            rows = torch.empty(len(row_ids), table.width)
            dist.all_to_all_single(rows, self._shards[table.name][asked], counts, asked_splits)
            pulled[table.name] = (rows, asked, asked_splits)
        return pulled

    def _push(self, table: Table, batch: int, asked: Any, asked_splits: List[int]) -> None:
        """Send gradients of rows to their owners, which subtract them."""
        _, _, counts, gradient = self._lookups[batch][table.name]
        received = torch.empty(len(asked), table.width)
        dist.all_to_all_single(received, gradient, asked_splits, counts)
        self._shards[table.name].index_add_(0, asked, received, alpha=-1)

    def _allreduce_dense(self) -> None:
        start, pending, buckets = 0, 0, []
        for number, gradient in enumerate(self._dense):
            pending += gradient.numel() * 4
            if pending >= _BUCKET_BYTES or number == len(self._dense) - 1:
                buckets.append((start, number + 1))
                start, pending = number + 1, 0
        flat = [torch.cat([gradient.reshape(-1) for gradient in self._dense[first:last]]) for first, last in buckets]
        works = [dist.all_reduce(bucket, async_op=True) for bucket in flat]
        for (first, last), bucket, work in zip(buckets, flat, works):
            work.wait()
            at = 0
            for weight in self._weights[first:last]:
                weight.sub_(bucket[at:at + weight.numel()].view(weight.shape))
                at += weight.numel()

    def step(self, batch: int) -> None:
        pulled = self._pull(batch)
        for table in self.workload.tables:
            self._push(table, batch, *pulled[table.name][1:])
        self._allreduce_dense()

    def flush(self) -> None:
        """Do nothing: no exchange is in flight after a step."""

    def barrier(self) -> None:
        dist.barrier()

    def verify(self, batch: int) -> Dict[str, Dict[str, Checksum]]:
        """Make one more step; returns checksums by parameter of the steps before it, and of it."""
        before = self._read(batch)
        self.step(batch)
        after = self._read(batch)
        return {'past': {name: checksum(-value) for name, value in before.items()},
                'step': {name: checksum(before[name] - after[name]) for name in before}}

    def _read(self, batch: int) -> Dict[str, np.ndarray]:
        values = {}
        for name, (rows, _, _) in self._pull(batch).items():
            in_order = np.empty(rows.shape, np.float32)
            in_order[self._lookups[batch][name][1]] = rows.numpy()
            values[name] = in_order
        values.update({parameter.name: weight.numpy().copy()
                       for parameter, weight in zip(self.workload.dense, self._weights)})
        return values
