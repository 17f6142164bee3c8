"""A shard of a weight knows the whole weight, and so does the optimizer state that belongs to it."""
import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import InputError
from mxhybrid.kvstore.weight_shards import refuse_shards, set_shard, shard_of
from mxhybrid.parallel.runtime import sharded_parameters
from mxhybrid.parallel.runtime.sharded_parameters import ShardedWeight

from ....helpers.gluon_nets import Net, initialised

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


#: The second of two heads, and both: the rows of the weight are (3, 2 heads, 2 features).
HEAD, HEADS = ((0, 3), (1, 2), (0, 2), (0, 5)), ((0, 3), (0, 2), (0, 2), (0, 5))


def test_heads_have_rows_of_the_whole_weight():
    weight = ShardedWeight(Alone(), (12, 5), {0: HEAD}, 0, ((3, 2, 2), (5,)))
    assert weight.shape == (6, 5)
    assert weight.whole_of((6, 5)) == ((12, 5), HEAD)
    assert weight.whole_of((6, 1)) == ((12, 1), HEAD[:3] + ((0, 1),))


@pytest.mark.parametrize('slab_bytes, box, counts, pieces', [
    (60, ((0, 4), (0, 6)), (4, 6), 2), (100, HEADS, (3, 2, 2, 5), 3),
    *((slab_bytes, HEAD, (3, 2, 2, 5), None) for slab_bytes in (20, 50, 100, 1000))])
def test_values_pass_through_in_slabs_of_rows(slab_bytes, box, counts, pieces, monkeypatch):
    """The job has one worker; if it has the whole weight, it also gathers it, in a number of pieces."""
    monkeypatch.setattr(sharded_parameters, 'SLAB_BYTES', slab_bytes)
    values, asked = np.arange(np.prod(counts), dtype=np.float32).reshape(-1, counts[-1]), []
    weight = ShardedWeight(Alone(), values.shape, {0: box}, 0, (counts[:-1], counts[-1:]))

    def rows(first, last):
        asked.append((first, last))
        return values[first:last]
    array = mx.nd.zeros(weight.shape)
    weight.scatter(rows, array, values.shape, np.float32)
    assert [first for first, _ in asked] + [len(values)] == [0] + [last for _, last in asked]
    assert all(0 < last - first <= max(1, slab_bytes // values[0].nbytes) for first, last in asked)
    mine = values.reshape(counts)[tuple(slice(*side) for side in box)]
    np.testing.assert_array_equal(array.asnumpy(), mine.reshape(weight.shape))
    if pieces:
        gathered = list(weight.gather(array, values.shape, np.float32))
        assert [len(piece) for piece in gathered] == [last - first for first, last in asked] and len(asked) == pieces
        np.testing.assert_array_equal(np.concatenate(gathered), values)


def test_gluon_by_itself_refuses_parts(tmp_path):
    """Gluon would take a shard for the whole weight."""
    param = mx.gluon.Parameter('weight', shape=(2, 6))
    param.initialize()
    refuse_shards([param], 'save_states')
    set_shard(param, part(ROWS))
    assert shard_of(param).holds
    params, path = mx.gluon.ParameterDict(), str(tmp_path / 'file')
    params.update({'weight': param})
    mx.nd.save(path, {'weight': mx.nd.zeros((2, 6))})
    with pytest.raises(InputError, match='^save_parameters or export: the workers hold shards of weight: use save_pa'):
        params.save(path)
    for call in (lambda: params.load(path), lambda: param.set_data(mx.nd.zeros((3, 6)))):
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
        net = nn.Dense(3, in_units=4) if layers == 1 else Net(lambda: [
            nn.Dense(5, in_units=4), nn.BatchNorm(), nn.Dense(3)])
        initialised(net, mx.init.Normal(1))(data)
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
