"""A worker of the training workloads by PyTorch over Gloo: DistributedDataParallel, and tables that all workers share.

Networks return the loss of each word, sample or image. Rows are distributed as in `sharded`; one exchange serves all
tables of a width, as in TorchRec.
"""
import math
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from .model_steps import Task, batches, initial, task_of

#: MXNet's adagrad adds it below the root.
EPSILON = 1e-7
_MASKED = -1e9


class _Language(nn.Module):
    def __init__(self, task: Task):
        super().__init__()
        self.lstm, self._state = nn.LSTM(task.width, task.width), None

    def forward(self, rows: List[Any], words: Any, labels: Any, candidates: Any, *counts: Any) -> Any:
        # Sampled softmax as in examples/word_lm.py.
        output, state = self.lstm(rows[0], self._state)
        self._state = tuple(array.detach() for array in state)
        hidden, number = output.reshape(-1, output.shape[-1]), len(candidates)
        weight, bias = rows[1], rows[2].reshape(-1)
        true = (hidden * weight[number:]).sum(1) + bias[number:] - counts[0]
        negative = functional.linear(hidden, weight[:number], bias[:number] - counts[1])
        hits = (labels.reshape(-1, 1) == candidates.reshape(1, -1)).float()
        return -functional.log_softmax(torch.cat([true.reshape(-1, 1), negative + hits * _MASKED], 1), 1)[:, 0]


def _perceptron(*widths: int) -> Any:
    return nn.Sequential(*[layer for inputs, outputs in zip(widths, widths[1:])
                           for layer in (nn.Linear(inputs, outputs), nn.ReLU())])


class Dlrm(nn.Module):
    """DLRM without its tables."""

    def __init__(self, task: Task):
        super().__init__()
        vectors = len(task.rows) + 1
        self._pairs = torch.tensor([row * vectors + column for row in range(vectors) for column in range(row)])
        self.bottom = _perceptron(13, 512, 256, 64, task.width)
        self.top = _perceptron(task.width + len(self._pairs), 512, 256)
        self.last = nn.Linear(256, 1)

    def forward(self, rows: List[Any], numbers: Any, keys: Any, clicks: Any) -> Any:
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self._pairs]
        logits = self.last(self.top(torch.cat([dense, products], 1))).reshape(-1)
        return functional.binary_cross_entropy_with_logits(logits, clicks, reduction='none')


class _Bottleneck(nn.Module):
    """A block as Gluon's model zoo writes it: the first convolution has the stride, two have a bias."""

    def __init__(self, inputs: int, channels: int, stride: int):
        super().__init__()
        inner = channels // 4
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, stride), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, 1, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, channels, 1), nn.BatchNorm2d(channels))
        self.shortcut = nn.Sequential() if inputs == channels else nn.Sequential(
            nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, images: Any) -> Any:
        return torch.relu(self.body(images) + self.shortcut(images))


class _Images(nn.Module):
    def __init__(self, task: Task):
        super().__init__()
        layers: List[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                             nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, (blocks, channels) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
            for block in range(blocks):
                layers.append(_Bottleneck(inputs, channels, 2 if stage and block == 0 else 1))
                inputs = channels
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, task.words))

    def forward(self, rows: List[Any], images: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.body(images), labels.long(), reduction='none')


class _GptLayer(nn.Module):
    def __init__(self, units: int, heads: int = 8):
        super().__init__()
        self._heads = heads
        self.norm, self.wide_norm = nn.LayerNorm(units), nn.LayerNorm(units)
        self.query, self.key, self.value, self.projection = (nn.Linear(units, units) for _ in range(4))
        self.wide, self.narrow = nn.Linear(units, 4 * units), nn.Linear(4 * units, units)

    def forward(self, data: Any) -> Any:
        normed = self.norm(data)
        query, key, value = (layer(normed).unflatten(-1, (self._heads, -1)).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        data = data + self.projection(attended.transpose(1, 2).flatten(2))
        return data + self.narrow(functional.gelu(self.wide(self.wide_norm(data))))


class _Gpt(nn.Module):
    def __init__(self, task: Task):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, task.times, task.width))
        self.embedding = nn.Embedding(task.words, task.width)
        self.layers = nn.Sequential(*[_GptLayer(task.width) for _ in range(4)])
        self.norm, self.words = nn.LayerNorm(task.width), nn.Linear(task.width, task.words)

    def forward(self, rows: List[Any], ids: Any, labels: Any) -> Any:
        logits = self.words(self.norm(self.layers(self.embedding(ids) + self.position)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.reshape(-1).long(), reduction='none')


class _Shard:
    """Rows of all tables of a width that this worker holds, with the state of adagrad."""

    def __init__(self, tables: List[Tuple[int, int, int]], rank: int, size: int, rate: float):
        self._rank, self._size, self._rate = rank, size, rate
        parts = [torch.from_numpy(initial(number, (rows, width))[rank::size].copy()) for number, rows, width in tables]
        lengths = [-(-rows // size) for _, rows, _ in tables]
        self._bases = np.cumsum([0] + lengths)
        self._weight = torch.zeros(int(self._bases[-1]), tables[0][2])
        for base, part in zip(self._bases, parts):
            self._weight[base:base + len(part)] = part
        self._history = torch.full_like(self._weight, EPSILON)

    def pull(self, ids: List[np.ndarray]) -> List[Any]:
        """Look the ids of each table up."""
        flat = [table.reshape(-1).astype(np.int64) for table in ids]
        span, size = int(self._bases[-1]), self._size
        keys = np.concatenate([table % size * span + base + table // size for base, table in zip(self._bases, flat)])
        unique, inverse = np.unique(keys, return_inverse=True)
        counts = np.bincount(unique // span, minlength=size)
        asked_counts = torch.empty(size, dtype=torch.int64)
        dist.all_to_all_single(asked_counts, torch.from_numpy(counts))
        self._counts, self._asked_counts = counts.tolist(), asked_counts.tolist()
        self._asked = torch.empty(sum(self._asked_counts), dtype=torch.int64)
        dist.all_to_all_single(self._asked, torch.from_numpy(unique % span), self._asked_counts, self._counts)
        self._rows = torch.empty(len(unique), self._weight.shape[1])
        dist.all_to_all_single(self._rows, self._weight[self._asked], self._counts, self._asked_counts)
        self._rows.requires_grad_()
        looked_up = functional.embedding(torch.from_numpy(inverse.reshape(-1)), self._rows)
        parts = looked_up.split([len(table) for table in flat])
        return [part.reshape(*table.shape, -1) for part, table in zip(parts, ids)]

    def push(self) -> None:
        """Send the gradients of rows to their owners, which update by adagrad."""
        received = torch.empty(len(self._asked), self._weight.shape[1])
        dist.all_to_all_single(received, self._rows.grad / self._size, self._asked_counts, self._counts)
        rows, places = torch.unique(self._asked, return_inverse=True)
        gradient = torch.zeros(len(rows), self._weight.shape[1]).index_add_(0, places, received)
        history = self._history[rows] + gradient * gradient
        self._history[rows] = history
        self._weight.index_add_(0, rows, gradient / history.sqrt(), alpha=-self._rate)


def set_first_values(net: Any, task: Task) -> None:
    """Give a network without its tables the first values that all contenders have."""
    taken = {number for number, _, _ in task.tables}
    params = list(net.named_parameters())
    numbers = [number for number in range(len(params) + len(taken)) if number not in taken]
    with torch.no_grad():
        for number, (name, param) in zip(numbers, params):
            if param.dim() > 1:
                param.copy_(torch.from_numpy(initial(number, tuple(param.shape))))
            elif 'bias' in name:
                param.zero_()


class TorchTrained:
    """A worker; the methods are those of `contenders.Contender`, the parameters those of `model_training.Trained`."""

    def __init__(self, spec: Dict[str, Any], rank: int, size: int):
        self._spec, self._task, self._rank, self._size = spec, task_of(spec), rank, size
        self.phases: Dict[str, float] = {}
        self._losses: List[float] = []

    def start(self) -> None:
        """Join the other workers, and make the network and its optimizer."""
        torch.set_num_threads(1)
        dist.init_process_group('gloo', rank=self._rank, world_size=self._size)
        data = np.load(self._spec['data']) if self._spec['data'] else None
        self._batches = batches(self._task, data, self._rank, self._size,
                                self._spec['warmup'] + self._spec['steps'] + 1)
        self._make(self._task)

    def _make(self, task: Task) -> None:
        settings = dict(task.settings)
        rate = settings['learning_rate']
        widths = sorted({width for _, _, width in task.tables}, reverse=True)
        self._shards = [_Shard([table for table in task.tables if table[2] == width], self._rank, self._size, rate)
                        for width in widths]
        net = {'lm': _Language, 'dlrm': Dlrm, 'resnet50': _Images, 'gpt': _Gpt}[task.kind](task)
        set_first_values(net, task)
        self._net = DistributedDataParallel(net)
        if task.optimizer == 'adagrad':
            self._optimizer: Any = torch.optim.Adagrad(net.parameters(), rate, initial_accumulator_value=EPSILON,
                                                       eps=0)
        elif task.optimizer == 'adam':
            self._optimizer = torch.optim.Adam(net.parameters(), rate)
        else:
            self._optimizer = torch.optim.SGD(net.parameters(), rate, settings['momentum'],
                                              weight_decay=settings['wd'])

    def _pull(self, batch: Tuple[Any, ...]) -> List[Any]:
        if self._task.kind == 'lm':
            words, labels, candidates = batch[:3]
            outputs = np.concatenate([candidates, labels])
            return self._shards[0].pull([words, outputs]) + self._shards[1].pull([outputs])
        return self._shards[0].pull(list(batch[1].T)) if self._task.kind == 'dlrm' else []

    def _train(self, arrays: Tuple[Any, ...]) -> Any:
        rows = self._pull(arrays)
        self._optimizer.zero_grad()
        loss = self._net(rows, *map(torch.from_numpy, arrays)).mean()
        loss.backward()
        for shard in self._shards:
            shard.push()
        self._optimizer.step()
        return loss

    def step(self, batch: int) -> None:
        loss = self._train(self._batches[len(self._losses)])
        self._losses.append(loss.item() / self._size)
        if not math.isfinite(self._losses[-1]):
            raise RuntimeError('the loss of step %d is not finite' % len(self._losses))

    def flush(self) -> None:
        """Do nothing: a step is complete."""

    def barrier(self) -> None:
        dist.barrier()

    def verify(self, batch: int) -> Dict[str, List[float]]:
        """Return this worker's parts of the losses of all steps."""
        return {'losses': self._losses}
