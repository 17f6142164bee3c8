"""Workloads: the tensors that workers exchange, and the rows of tables that a worker touches in a step.

================  ==========================================  ======================================================
workload          tables                                      dense elements at full width
================  ==========================================  ======================================================
``lm1b``          2 of 793,470 x 512                          9.4 million: LSTM of 2048 units projected to 512
``nmt``           2 of 36,548 x 1024 (74.9 million elements)  94.1 million: 6 LSTM layers of 1024, output projection
``resnet50``      none                                        25.6 million, ResNet-50's own layers
``inception_v3``  none                                        23.8 million, Inception-v3's own layers
``recsys``        8 of 5,652 to 1,000,000 x 64                0.6 million: two perceptrons
================  ==========================================  ======================================================

The models are those of Parallax (Kim et al., EuroSys 2019, table 1), which gives 23.8 million for ResNet-50 and 25.6
million for Inception-v3; the layers of the two published models add up to these numbers the other way round.  The
language model follows Jozefowicz et al. (2016): per worker 128 x 20 tokens, 8192 sampled classes.  The paper does not
print the layers of its translation model; those here add up to its totals.

Row ids are drawn from seeds, equal for all contenders, and never depend on the width.
"""
from dataclasses import dataclass, replace
from typing import Dict, List, Tuple

import numpy as np

from . import shapes

#: Exponent of the law by which words, and users and items, occur.  Draws are bounded by the size of the table.
ZIPF_EXPONENT = 1.3

#: Different batches that a worker holds; steps take them in turn.
BATCHES = 4

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Table:
    """A row_sparse parameter, float32."""

    name: str
    rows: int
    width: int
    #: The ids that a worker draws from a Zipf law in a step.
    zipf: int
    #: The distinct ids that it draws log-uniformly besides, as sampled softmax does.
    candidates: int = 0

    @property
    def shape(self) -> Tuple[int, int]:
        """Rows and width."""
        return (self.rows, self.width)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, its id left out."""
        return self.width * _FLOAT_BYTES


@dataclass(frozen=True)
class Dense:
    """A dense parameter, float32."""

    name: str
    shape: Tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class Workload:
    """A model seen from its exchange of gradients."""

    name: str
    tables: Tuple[Table, ...]
    dense: Tuple[Dense, ...]
    #: The unit of throughput, words, images or samples, and their number in a step of a worker.
    unit: str
    units: int

    def scaled(self, width: float) -> 'Workload':
        """Return a workload with the same access pattern, and tables and dense parameters `width` times as wide."""
        if not 0 < width <= 1:
            raise ValueError('--width-scale %g is not above 0 and at most 1' % width)
        return replace(
            self, tables=tuple(replace(table, width=max(1, round(table.width * width))) for table in self.tables),
            dense=tuple(replace(parameter, shape=(max(1, round(parameter.shape[0] * width)),) + parameter.shape[1:])
                        for parameter in self.dense))

    def shrunk(self, factor: int) -> 'Workload':
        """A `factor` times smaller relative for tests: fewer rows, fewer ids, fewer dense parameters."""
        if factor < 1:
            raise ValueError('--shrink %d is not at least 1' % factor)
        if factor == 1:
            return self
        tables = tuple(replace(table, rows=max(8, table.rows // factor), zipf=max(1, table.zipf // factor),
                               candidates=min(table.candidates // factor, max(8, table.rows // factor) // 2))
                       for table in self.tables)
        dense = tuple(replace(parameter, shape=(max(1, parameter.shape[0] // factor),) + parameter.shape[1:])
                      for parameter in self.dense[::max(1, len(self.dense) // 8)])
        return replace(self, tables=tables, dense=dense, units=max(1, self.units // factor))

    @property
    def dense_bytes(self) -> int:
        """Bytes of all dense parameters."""
        return _FLOAT_BYTES * sum(parameter.elements for parameter in self.dense)

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables, all rows."""
        return sum(table.rows * table.row_bytes for table in self.tables)

    def draw(self, batch: int, rank: int) -> Dict[str, np.ndarray]:
        """Return the ids that a worker looks up in each table in a batch, in the order of its data: int64, not unique.
        """
        return {table.name: _draw(table, [batch, rank, number]) for number, table in enumerate(self.tables)}


def step_batch(step: int) -> int:
    """The batch that a step takes."""
    return step % BATCHES


def _draw(table: Table, seed: List[int]) -> np.ndarray:
    random = np.random.RandomState(seed)
    ids = _bounded_zipf(random, table.rows, table.zipf)
    if table.candidates:
        ids = np.concatenate([_distinct_log_uniform(random, table.rows, table.candidates), ids])
    return ids


def _bounded_zipf(random: np.random.RandomState, rows: int, count: int) -> np.ndarray:
    """Ids k from 0 with probability in proportion to (k + 1) ** -ZIPF_EXPONENT; ids outside the range are drawn again.
    """
    ids = np.empty(0, np.int64)
    while len(ids) < count:
        drawn = random.zipf(ZIPF_EXPONENT, 2 * (count - len(ids)) + 8) - 1
        ids = np.concatenate([ids, drawn[(drawn >= 0) & (drawn < rows)]])
    return ids[:count]


def _distinct_log_uniform(random: np.random.RandomState, rows: int, count: int) -> np.ndarray:
    """`count` distinct ids, k with probability log((k + 2) / (k + 1)) / log(rows + 1), as TensorFlow's sampler."""
    drawn = np.empty(0, np.int64)
    while True:
        more = np.exp(random.random_sample(2 * count) * np.log(rows + 1)).astype(np.int64) - 1
        drawn = np.concatenate([drawn, np.minimum(more, rows - 1)])
        ids, first = np.unique(drawn, return_index=True)
        if len(ids) >= count:
            return ids[np.argsort(first)[:count]]


# ------------------------------------------------------------------------------------------- the workloads

def _named(prefix: str, dense: List[Tuple[int, ...]]) -> Tuple[Dense, ...]:
    return tuple(Dense('%s%d' % (prefix, number), shape) for number, shape in enumerate(dense))


def _lm1b() -> Workload:
    tokens, vocabulary, width, units = 128 * 20, 793470, 512, 2048
    return Workload(
        'lm1b', (Table('input', vocabulary, width, tokens), Table('softmax', vocabulary, width, tokens, 8192)),
        (Dense('i2h_weight', (4 * units, width)), Dense('h2h_weight', (4 * units, width)),
         Dense('bias', (4 * units,)), Dense('projection_weight', (width, units))), 'words', tokens)


def _nmt() -> Workload:
    vocabulary, width, tokens, layers = 36548, 1024, 128 * 25, 3
    dense: List[Tuple[int, ...]] = []
    for decoder in (False, True):
        for layer in range(layers):
            # The decoder's first layer also sees the attention.
            inputs = width * (3 if decoder and layer == 0 else 2)
            dense += [(4 * width, inputs), (4 * width,)]
    dense += [(width, 2 * width), (vocabulary, width)]
    return Workload('nmt', (Table('source', vocabulary, width, tokens), Table('target', vocabulary, width, tokens)),
                    _named('nmt', dense), 'words', tokens)


def _recsys() -> Workload:
    samples, width = 2048, 64
    rows = (1000000, 1000000, 500000, 286181, 142572, 93145, 12517, 5652)
    layers = (13, 512, 256, width)
    top = (width * (len(rows) + 1), 512, 256, 1)
    dense: List[Tuple[int, ...]] = []
    for sizes in (layers, top):
        for inputs, outputs in zip(sizes, sizes[1:]):
            dense += [(outputs, inputs), (outputs,)]
    return Workload('recsys', tuple(Table('table%d' % number, count, width, samples)
                                    for number, count in enumerate(rows)), _named('mlp', dense), 'samples', samples)


#: Every workload by name.
WORKLOADS: Dict[str, Workload] = {workload.name: workload for workload in (
    _lm1b(), _nmt(),
    Workload('resnet50', (), _named('resnet', shapes.resnet50()), 'images', 64),
    Workload('inception_v3', (), _named('inception', shapes.inception_v3()), 'images', 64),
    _recsys())}
