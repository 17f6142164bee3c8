"""Training workloads without a framework: sizes, batches and first values, equal for MXNet and PyTorch, by NumPy alone.

=================  ===============================================================================================
workload           network
=================  ===============================================================================================
``train_lm``       words of Shakespeare: table, LSTM, sampled softmax (Jozefowicz et al. 2016), 512 wide
``train_news``     the same network on words of news
``train_dlrm``     DLRM (Naumov et al. 2019) with its sizes for Criteo's data: 26 tables; drawn samples
``train_movielens``  the same network on MovieLens-100k: 26 fields and pairs of fields
``train_resnet50`` ResNet-50 (He et al. 2015) on drawn images of 224 x 224
``train_gpt``      a GPT of 4 layers, 512 wide, on words of news
=================  ===============================================================================================
"""
import math
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

#: Rows of the features of Criteo's display advertising challenge; DLRM's --max-ind-range cuts long features.
_CRITEO_ROWS = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306,
                10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
_MOST_ROWS = 100000
#: Exponent of the power law of drawn keys.
_POWER = 1.1
_NUMBERS = 13


@dataclass(frozen=True)
class Task:
    """A training workload."""

    name: str
    #: The network: 'lm', 'dlrm', 'resnet50' or 'gpt'.
    kind: str
    unit: str
    #: The samples of a worker and step; for `lm`, columns of text.
    samples: int
    optimizer: str
    settings: Tuple[Tuple[str, float], ...]
    #: The words of a sample.
    times: int = 1
    #: The rows of the tables of words.
    words: int = 0
    #: The width of tables and layers.
    width: int = 0
    #: The drawn classes of a step.
    candidates: int = 0
    #: The rows of each table of `dlrm`.
    rows: Tuple[int, ...] = ()
    corpus: str = ''

    @property
    def units(self) -> int:
        """Words, samples or images of a worker in a step."""
        return self.samples * self.times

    @property
    def tables(self) -> List[Tuple[int, int, int]]:
        """Return the number among all parameters, rows and width of each table."""
        if self.kind == 'lm':
            return [(0, self.words, self.width), (5, self.words, self.width), (6, self.words, 1)]
        return [(number, rows, self.width) for number, rows in enumerate(self.rows)]

    def shrunk(self, factor: int) -> 'Task':
        """Return a smaller relative for tests."""
        return replace(self, samples=max(2, self.samples // factor), words=self.words // factor,
                       candidates=self.candidates // factor, rows=tuple(max(3, one // factor) for one in self.rows))


_ADAGRAD = (('learning_rate', 0.05),)
_LM = Task('train_lm', 'lm', 'words', 16, 'adagrad', _ADAGRAD, times=20, words=25000, width=512, candidates=2048,
           corpus='shakespeare')
_DLRM = Task('train_dlrm', 'dlrm', 'samples', 512, 'adagrad', _ADAGRAD, width=16,
             rows=tuple(min(rows, _MOST_ROWS) for rows in _CRITEO_ROWS))

TASKS: Dict[str, Task] = {task.name: task for task in (
    _LM, replace(_LM, name='train_news', words=60000, corpus='news'),
    _DLRM, replace(_DLRM, name='train_movielens', corpus='movielens'),
    Task('train_resnet50', 'resnet50', 'images', 4, 'sgd',
         (('learning_rate', 0.001), ('momentum', 0.9), ('wd', 1e-4)), width=224, words=1000),
    Task('train_gpt', 'gpt', 'words', 4, 'adam', (('learning_rate', 1e-4),), times=128, words=14000, width=512,
         corpus='news'))}


def task_of(spec: Dict[str, Any]) -> Task:
    """Return the task of a job's specification; its data decides how many rows the tables of its fields have."""
    task = TASKS[spec['workload']].shrunk(spec['shrink'])
    return replace(task, rows=tuple(spec['rows'])) if spec.get('rows') else task


def initial(number: int, shape: Tuple[int, ...]) -> np.ndarray:
    """Return the first values of the parameter with a number, for parameters of more than one dimension."""
    most = min(0.05, 1 / math.sqrt(math.prod(shape[1:])))
    values = np.random.default_rng(number).random(shape, np.float32)
    values *= 2 * most
    values -= most
    return values


def batches(task: Task, data: Optional[np.ndarray], rank: int, size: int, count: int) -> List[Tuple[Any, ...]]:
    """Return this worker's arrays of `count` steps, the inputs of its network."""
    mine = slice(rank * task.samples, (rank + 1) * task.samples)
    joint = size * task.samples
    if task.kind == 'resnet50':
        draws = [np.random.default_rng([rank, step]) for step in range(count)]
        return [(draw.random((task.samples, 3, task.width, task.width), np.float32) * 2 - 1,
                 draw.integers(0, task.words, task.samples).astype(np.float32)) for draw in draws]
    if task.kind == 'dlrm':
        return [_clicks(task, data, joint, mine, step) for step in range(count)]
    assert data is not None
    columns = data[:len(data) // joint * joint].reshape(joint, -1).T[:, mine]
    starts = [step % ((len(columns) - 1) // task.times) * task.times for step in range(count)]
    texts = [columns[start:start + task.times + 1] for start in starts]
    if task.kind == 'gpt':
        return [(np.ascontiguousarray(text[:-1].T), np.ascontiguousarray(text[1:].T)) for text in texts]
    draw = np.random.RandomState(0)  # all workers have the same candidates
    return [_with_candidates(task, text, draw) for text in texts]


def _with_candidates(task: Task, text: np.ndarray, draw: np.random.RandomState) -> Tuple[Any, ...]:
    """Return words, labels, candidates, and the logarithms of the expected counts of labels and candidates."""
    labels, scale = text[1:].reshape(-1), math.log(task.words + 1)
    drawn = np.minimum(np.exp(draw.random_sample(4 * task.candidates) * scale).astype(np.int64) - 1, task.words - 1)
    candidates, first = np.unique(drawn, return_index=True)
    kept = np.sort(np.argsort(first)[:task.candidates])
    tries = int(first[kept].max()) + 1
    candidates = candidates[kept]
    counts = [np.log(-np.expm1(tries * np.log1p(-np.log1p(1 / (ids + 1.0)) / scale))).astype(np.float32)
              for ids in (labels, candidates)]
    return (np.ascontiguousarray(text[:-1]), labels, candidates.astype(np.int32), *counts)


def _clicks(task: Task, data: Optional[np.ndarray], joint: int, mine: slice, step: int) -> Tuple[Any, ...]:
    """Return numbers, keys of all features and clicks."""
    if data is not None:
        order = np.random.RandomState(0).permutation(len(data))
        taken = data[np.take(order, range(step * joint + mine.start, step * joint + mine.stop), mode='wrap')]
        return (np.zeros((task.samples, _NUMBERS), np.float32), taken[:, 1:].astype(np.int32),
                taken[:, 0].astype(np.float32))
    draw = np.random.RandomState([step, mine.start])
    sizes = np.array(task.rows)
    # Ranks of a power law with this exponent, by the inverse of its continuous distribution function.
    keys = ((1 + draw.rand(task.samples, len(sizes)) * (sizes ** (1 - _POWER) - 1)) ** (1 / (1 - _POWER)) - 1)
    keys = np.minimum(keys.astype(np.int64), sizes - 1)
    weights = np.sin((keys + 1.0) * (np.arange(len(sizes)) + 1.0))  # of each key, from -1 to 1
    numbers = draw.rand(task.samples, _NUMBERS).astype(np.float32)
    chance = 1 / (1 + np.exp(1 - weights.sum(axis=1) - numbers.sum(axis=1) / _NUMBERS))
    return numbers, keys.astype(np.int32), (draw.rand(task.samples) < chance).astype(np.float32)
