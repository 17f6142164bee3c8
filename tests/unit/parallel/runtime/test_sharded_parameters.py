"""A shard of a weight knows the whole weight, and so does the optimizer state that belongs to it."""
import mxnet as mx
import numpy as np
import pytest

import mxhybrid
from mxhybrid import InputError
from mxhybrid.kvstore.weight_shards import refuse_shards, set_shard, shard_of
from mxhybrid.parallel.runtime import sharded_parameters
from mxhybrid.parallel.runtime.sharded_parameters import ShardedWeight

ROWS = {0: ((0, 2), (0, 6)), 1: ((2, 4), (0, 6))}
BLOCKS = {0: ((0, 2), (0, 3)), 1: ((0, 2), (3, 6)), 2: ((2, 4), (0, 3)), 3: ((2, 4), (3, 6))}
COLUMNS = {0: ((0, 4), (0, 3)), 1: ((0, 4), (3, 6))}


class Alone:
    """A worker group in which this process has one rank; the other ranks do nothing.  It is its own transport."""

    size, reserved = 4, 0

    def __init__(self, rank=0):
        self.rank, self.transport = rank, self

    def push_views(self, move, source, target, arrays, priority):
        for here, there in move.local:
            target[there] = source[here]

    def forget(self, moves):
        pass

    def barrier(self):
        pass

    def reserve_numbers(self, count):
        self.reserved += count
        return self.reserved - count


def part(boxes, shape=(4, 6), rank=0):
    return ShardedWeight(Alone(rank), shape, boxes, 0)


@pytest.mark.parametrize('boxes, shape, whole', [
    (ROWS, (2, 6), (4, 6)), (BLOCKS, (2, 3), (4, 6)), (COLUMNS, (4, 3), (4, 6)),  # momentum
    (ROWS, (2, 1), (4, 1)),  # a row's
    (ROWS, (1,), (1,)), (BLOCKS, (5,), (5,)),  # an optimizer's own
    (COLUMNS, (4, 1), (4, 1)), (BLOCKS, (2, 1), (2, 1))])  # of parts of rows: the same on all, or refused
def test_the_whole_state_of_an_optimizer(boxes, shape, whole):
    found, box = part(boxes).whole_of(shape)
    assert found == whole
    assert tuple(high - low for low, high in box) == shape


def test_shapes_that_cannot_be_inferred_are_refused():
    message = r'cannot infer the whole shape of optimizer state \(4, 6\) that belongs to shard \(2, 6\)'
    with pytest.raises(InputError, match=message):
        part(ROWS).whole_of((4, 6))


def test_values_pass_through_in_slabs(monkeypatch):
    """The job has one worker, which has the whole weight."""
    monkeypatch.setattr(sharded_parameters, 'SLAB_BYTES', 60)
    piece_of_rank, asked = part({0: ((0, 4), (0, 6))}), []
    values = np.arange(24, dtype=np.float32).reshape(4, 6)

    def rows(first, last):
        asked.append((first, last))
        return values[first:last]
    array = mx.nd.zeros((4, 6))
    piece_of_rank.scatter(rows, array, (4, 6), np.float32)
    assert asked == [(0, 2), (2, 4)]
    np.testing.assert_array_equal(array.asnumpy(), values)
    pieces = list(piece_of_rank.gather(array, (4, 6), np.float32))
    assert [piece.shape for piece in pieces] == [(2, 6), (2, 6)]
    np.testing.assert_array_equal(np.concatenate(pieces), values)


@pytest.mark.parametrize('slab_bytes', [20, 50, 100, 1000])
def test_values_of_heads_pass_through_in_slabs_of_rows(slab_bytes, monkeypatch):
    """The rows of a weight are (3, 2 heads, 2 features); this worker has the second head."""
    monkeypatch.setattr(sharded_parameters, 'SLAB_BYTES', slab_bytes)
    box = ((0, 3), (1, 2), (0, 2), (0, 5))
    weight = ShardedWeight(Alone(), (12, 5), {0: box}, 0, ((3, 2, 2), (5,)))
    assert weight.shape == (6, 5)
    assert weight.whole_of((6, 5)) == ((12, 5), box)
    assert weight.whole_of((6, 1)) == ((12, 1), box[:3] + ((0, 1),))
    values, asked = np.arange(60, dtype=np.float32).reshape(12, 5), []

    def rows(first, last):
        asked.append((first, last))
        return values[first:last]
    array = mx.nd.zeros((6, 5))
    weight.scatter(rows, array, (12, 5), np.float32)
    assert [first for first, _ in asked] + [12] == [0] + [last for _, last in asked]
    assert all(0 < (last - first) * 20 <= max(20, slab_bytes) for first, last in asked)
    np.testing.assert_array_equal(array.asnumpy(), values.reshape(3, 2, 2, 5)[:, 1].reshape(6, 5))


def test_heads_of_a_whole_weight_are_its_rows(monkeypatch):
    monkeypatch.setattr(sharded_parameters, 'SLAB_BYTES', 100)
    weight = ShardedWeight(Alone(), (12, 5), {0: ((0, 3), (0, 2), (0, 2), (0, 5))}, 0, ((3, 2, 2), (5,)))
    values = np.arange(60, dtype=np.float32).reshape(12, 5)
    pieces = list(weight.gather(mx.nd.array(values), (12, 5), np.float32))
    assert len(pieces) == 3
    np.testing.assert_array_equal(np.concatenate(pieces), values)


def test_gluon_by_itself_refuses_parts(tmp_path):
    """Gluon would take a shard for the whole weight."""
    param = mx.gluon.Parameter('weight', shape=(2, 6))
    param.initialize()
    refuse_shards([param], 'save_states')
    set_shard(param, part(ROWS))
    assert shard_of(param).holds
    params = mx.gluon.ParameterDict()
    params.update({'weight': param})
    mx.nd.save(str(tmp_path / 'file'), {'weight': mx.nd.zeros((2, 6))})
    with pytest.raises(InputError, match='^save_parameters or export: the workers hold shards of weight: use save_pa'):
        params.save(str(tmp_path / 'file'))
    for call in (lambda: params.load(str(tmp_path / 'file')), lambda: param.set_data(mx.nd.zeros((3, 6)))):
        with pytest.raises(InputError, match=r'the whole weight has shape \(4, 6\), and this worker holds \(2, 6\)'):
            call()
    with pytest.raises(InputError, match=r'^reset_ctx: weight belongs to a split network.* on cpu\(0\): leave it'):
        params.reset_ctx(mx.cpu(1))
    with pytest.raises(InputError, match='^cast: the types of a split network are fixed, and weight is float32'):
        param.cast('float64')


@pytest.mark.parametrize('rank', [0, 3])
def test_a_worker_takes_its_part_of_whole_values(tmp_path, rank):
    param, values = mx.gluon.Parameter('weight', shape=(2, 3)), mx.nd.arange(24).reshape((4, 6))
    param.initialize()
    set_shard(param, part(BLOCKS, rank=rank))
    rows, columns = [slice(*side) for side in BLOCKS[rank]]
    param.set_data(values)
    np.testing.assert_array_equal(param.data().asnumpy(), values.asnumpy()[rows, columns])
    params = mx.gluon.ParameterDict()
    params.update({'weight': param})
    mx.nd.save(str(tmp_path / 'file'), {'weight': -values})
    params.load(str(tmp_path / 'file'))
    np.testing.assert_array_equal(param.data().asnumpy(), -values.asnumpy()[rows, columns])


@pytest.mark.parametrize('layers', [1, 2])
def test_one_process_reads_and_writes_what_gluon_does(tmp_path, layers):
    """Names in the file of a single layer are no paths."""
    def make():
        net = mx.gluon.nn.HybridSequential() if layers > 1 else mx.gluon.nn.Dense(3, in_units=4)
        if layers > 1:
            net.add(mx.gluon.nn.Dense(5, in_units=4), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(3))
        net.initialize(mx.init.Normal(1))
        net(data)
        return net
    data = mx.nd.array(np.random.RandomState(1).rand(2, 4))
    net, other = make(), make()
    split = mxhybrid.parallelize(net, mxhybrid.parallel.data_parallel(), (2, 4))
    files = [str(tmp_path / name) for name in ('split', 'gluon')]
    split.save_parameters(files[0])
    net.save_parameters(files[1])
    assert mx.nd.load(files[0]).keys() == mx.nd.load(files[1]).keys()
    other.load_parameters(files[0])
    np.testing.assert_array_equal(other(data).asnumpy(), split(data).asnumpy())
    make().save_parameters(files[1])
    split.load_parameters(files[1])
    other.load_parameters(files[1])
    np.testing.assert_array_equal(other(data).asnumpy(), split(data).asnumpy())
    split.export(str(tmp_path / 'model'), epoch=7)
    found = mx.gluon.SymbolBlock.imports(str(tmp_path / 'model-symbol.json'), ['data'],
                                         str(tmp_path / 'model-0007.params'))
    np.testing.assert_allclose(found(data).asnumpy(), split(data).asnumpy(), rtol=1e-6)
    mx.nd.save(files[1], {name: mx.nd.zeros(2) for name in mx.nd.load(files[0])})
    with pytest.raises(AssertionError, match='shape incompatible'):
        split.load_parameters(files[1])
