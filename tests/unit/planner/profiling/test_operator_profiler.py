"""Times of shards of operators: their keys, their file, estimates, and programs of single operators."""
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxhybrid import InputError, parallel
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import collectives, rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.redistribution import redistribution
from mxhybrid.parallel.runtime.rank_program import ProgramSpec
from mxhybrid.parallel.sharding.layout import messages
from mxhybrid.parallel.sharding.split import OutputShard
from mxhybrid.planner.profiling import timer
from mxhybrid.planner.profiling.local_program import index_limits, local_program
from mxhybrid.planner.profiling.operator_profiler import OperatorProfiler
from mxhybrid.planner.profiling.profile_cache import read_profiles
from mxhybrid.planner.profiling.profile_key import ProfileKeys
from mxhybrid.planner.profiling.roofline import OperatorTime, RooflineEstimator, Work, roofline_seconds, work_of
from mxhybrid.planner.profiling.scaled_shard import scaled_shard
from mxhybrid.planner.profiling.timer import PassSeconds, ProgramTimer, call_overhead, time_shard
from tests.helpers.gluon_nets import Net

from .networks import graph_of, images_net, local_of, operators, place, positions_net


def work(network, operator, shard):
    """Return the work of a shard of an operator."""
    return work_of(network.graph, operator, rule_of(operator).shard(network.graph, operator, shard))


def test_parts_that_differ_in_their_position_are_one(images):
    graph, keys = images.graph, ProfileKeys(images.graph, collectives())
    first, second, third = operators(images, 'Convolution')
    low, high = place(graph, second, d2=(0, 4)), place(graph, second, d2=(4, 8))
    assert keys.key(second, low) == keys.key(second, high)
    assert keys.key(second, low) != keys.key(second, place(graph, second, d1=(0, 4)))
    assert keys.key(second, low) == keys.key(third, low)
    whole = [place(graph, one) for one in (first, second)]
    assert keys.key(first, whole[0]) != keys.key(second, whole[1])
    # a bias
    assert keys.key(second, OutputShard(whole[1].box, 0, 2)) != keys.key(second, OutputShard(whole[1].box, 1, 2))
    (pick,) = operators(images, 'pick')
    assert keys.key(pick, OutputShard(((0, 4), (0, 1)), 0, 4)) == keys.key(pick, OutputShard(((4, 8), (0, 1)), 2, 4))
    with_gradient = ProfileKeys(graph, collectives(), gradient_inputs={'data0'})
    assert keys.key(first, whole[0]) != with_gradient.key(first, whole[0])
    assert keys.key(second, whole[1]) == with_gradient.key(second, whole[1])


def test_joint_statistics_are_another_part(images):
    graph, (norm,) = images.graph, operators(images, 'BatchNorm')
    keys, local = ProfileKeys(graph, collectives()), ProfileKeys(graph, {})
    half, channels = place(graph, norm, d0=(0, 4)), place(graph, norm, d1=(0, 4))
    assert keys.key(norm, half) != local.key(norm, half)
    assert keys.key(norm, channels) == local.key(norm, channels)
    assert keys.key(norm, half) != keys.key(norm, place(graph, norm, d0=(0, 2)))


@pytest.mark.parametrize('cut', [{}, {'d0': (2, 4)}, {'d2': (4, 8)}, {'d1': (0, 4)}])
def test_an_operator_computes_as_in_a_program(images, cut):
    """The number of values, and of weights with gradients, is the same."""
    graph, keys = images.graph, ProfileKeys(images.graph, collectives())
    for operator in operators(images, 'Convolution') + operators(images, 'BatchNorm') + operators(images, 'Activation'):
        where = place(graph, operator, **cut)
        program = keys.program(operator, where)
        shapes = {name: value.shape for name, value in program.inputs.items()}
        _, found, _ = program.symbol.infer_shape(**shapes)
        assert tuple(high - low for low, high in where.box) in found
        if operator.op == 'Convolution':
            (weight,) = [value for value in program.inputs.values() if len(value.shape) == 4 and value.is_weight]
            assert weight.has_gradient and weight.shape[0] == where.box[1][1] - where.box[1][0]
            data = [value for value in program.inputs.values() if not value.is_weight]
            assert [value.has_gradient for value in data] == [operator != operators(images, 'Convolution')[0]]


def test_gradients_of_what_several_read_are_summed():
    """The sums are timed with the shard that the gradients come back to."""
    data = mx.sym.var('data')
    first = mx.sym.FullyConnected(data, num_hidden=5, name='first')
    once, twice = (mx.sym.Activation(first, act_type='tanh', name=name) for name in ('once', 'twice'))
    symbol = mx.sym.Group([mx.sym.dot(once + twice, twice, transpose_b=True), mx.sym.one_hot(first, depth=3)])
    graph = Graph(symbol, {'data': (4, 6)}, {'data': 'float32'})
    keys = ProfileKeys(graph, {})
    counts = {operator.name: [len(program.inputs) for program in keys.gradient_sums(operator, place(graph, operator))]
              for operator in graph.computing}
    assert {name: count for name, count in counts.items() if count} == {'first': [2], 'twice': [2]}
    operator = next(operator for operator in graph.computing if operator.name == 'first')
    (program,) = keys.gradient_sums(operator, place(graph, operator, d0=(0, 2)))
    assert [value.shape for value in program.inputs.values()] == [(2, 5)] * 2
    names = {operator.name: keys.key(operator, place(graph, operator)) for operator in graph.computing}
    assert names['once'] != names['twice']


@pytest.mark.parametrize('op, index_position', [('Embedding', 0), ('pick', 1)])
def test_indices_are_timed_without_a_gradient(profiles, caplog, op, index_position):
    network = graph_of(positions_net(), (4, 10, 6))
    graph, (operator,) = network.graph, operators(network, op)
    keys = ProfileKeys(graph, collectives())
    producer = graph.operators[operator.inputs[index_position][0]]
    assert keys.has_backward(producer)
    inputs = keys.program(operator, place(graph, operator)).inputs
    ids = '%s_output0_of_%d' % (producer.name, producer.number)
    assert {name for name, value in inputs.items() if not value.has_gradient} == {ids}
    assert min(profiles.shard_seconds(graph, operator, place(graph, operator))) > 0
    assert profiles.measured == 1 and not caplog.records


def test_ids_of_data_and_activations_are_alike():
    data, sizes = mx.sym.var('data'), {'input_dim': 20, 'output_dim': 8}
    symbol = mx.sym.Group([mx.sym.Embedding(data, name='given', **sizes), mx.sym.Embedding(
        mx.sym.FullyConnected(data, num_hidden=5, name='layer'), name='made', **sizes)])
    graph = Graph(symbol, {'data': (4, 5)}, {'data': 'float32'})
    keys = ProfileKeys(graph, {})
    given, made = (one for one in graph.computing if one.op == 'Embedding')
    assert keys.key(given, place(graph, given)) == keys.key(made, place(graph, made))
    assert keys.operator_key(given) == keys.operator_key(made)


def test_operators_without_times_are_estimated_with_a_warning(profiles, caplog):
    """A dense layer in float16, which MXNet has no CPU code for."""
    data = mx.sym.Cast(mx.sym.var('data'), dtype='float16')
    symbol = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=4, name='halves'), act_type='relu', name='relu')
    graph = Graph(symbol, {'data': (8, 16)}, {'data': 'float32'})
    pairs = [(one, place(graph, one, **cut)) for one in graph.computing for cut in ({}, {'d0': (0, 4)})]
    profiles.measure(graph, pairs)
    for one, where in pairs:
        found = profiles.shard_seconds(graph, one, where)
        assert found.forward > 0 and (found.backward > 0) == (one.op != 'Cast')
    (record,) = caplog.records
    assert ('halves (FullyConnected of shape (8, 4), float16) cannot be timed on this machine, its time is estimated '
            'from other operators: MXNetError: ') in record.getMessage()
    assert profiles.measure(graph, pairs) == 0  # it is not tried again
    assert not any(key.startswith('FullyConnected') for key in read_profiles(profiles.path)['parts'])
    mx.nd.waitall()  # nothing is left of the error


@pytest.mark.parametrize('error', [ValueError('a'), RuntimeError('a thread'), InputError('a rule'), MemoryError()])
def test_no_error_of_a_timed_part_ends_a_search(images, profiles, monkeypatch, caplog, error):
    def fail(*_):
        raise error
    monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.time_shard', fail)
    (norm,) = operators(images, 'BatchNorm')
    assert min(profiles.shard_seconds(images.graph, norm, place(images.graph, norm))) > 0
    assert 'batchnorm0_fwd (BatchNorm of shape (8, 8, 8, 8), float32) cannot be timed' in caplog.text
    assert type(error).__name__ in caplog.text


def test_operators_on_weights_alone_belong_to_their_readers(words):
    graph, (layer,) = words.graph, operators(words, 'RNN')
    program = ProfileKeys(graph, collectives()).program(layer, place(graph, layer, d1=(0, 2)))
    assert len([value for value in program.inputs.values() if value.is_weight]) >= 4
    assert any(node['op'] == '_rnn_param_concat' for node in json.loads(program.symbol.tojson())['nodes'])
    assert [value.shape for name, value in program.inputs.items() if 'embedding' in name] == [(7, 2, 6)]


def test_indices_are_in_range(words, images):
    numbers = {one.name: one.number for one in words.graph.operators}
    assert index_limits(words.graph)[numbers['data']] == 30
    numbers = {one.name: one.number for one in images.graph.operators}
    assert index_limits(images.graph)[numbers['data1']] == 12
    assert numbers['data0'] not in index_limits(images.graph)


@pytest.mark.parametrize('plan', [parallel.data_parallel(), parallel.grid(domain=(2,)), parallel.grid(model=2),
                                  parallel.by_name({'*dense*': {'channels': 2}, '*log_softmax*': {'channels': 2},
                                                   '*pick*': {'partials': 2}})])
def test_a_whole_program_runs_without_others(images, plan):
    for rank in range(2):
        _, _, program = local_of(images, plan, 2, rank)
        assert set(program.inputs) == set(program.symbol.list_inputs())
        found = ProgramTimer(program).time_once()
        assert found.forward > 0 and found.backward > 0


def test_redistributions_move_nothing(images):
    """Data that a rank sends are outputs, data that it receives are inputs with gradients."""
    _, _, program = local_of(images, parallel.grid(domain=(2,)), 2)
    taken = {name: value for name, value in program.inputs.items() if name.startswith('mxhybrid_received')}
    assert taken and any(value.has_gradient for value in taken.values())
    assert not any(node['op'] == 'Custom' for node in json.loads(program.symbol.tojson())['nodes'])
    averages = [value for name, value in program.inputs.items() if name.startswith('mxhybrid_next')]
    assert len(averages) == 2 and all(value.shape == (8,) and value.has_gradient for value in averages)


@pytest.mark.parametrize('copies', [1, 3])
def test_copies_have_arrays_of_their_own(words, copies):
    graph, (layer,) = words.graph, operators(words, 'RNN')
    program = ProfileKeys(graph, collectives()).program(layer, place(graph, layer))
    program_timer = ProgramTimer(program, copies)
    program_timer.time_once()
    assert len({id(array) for array in program_timer._arrays}) == copies * len(program.inputs)
    assert all(np.isfinite(one.asnumpy()).all() for one in program_timer._outputs)
    weights = [array for array in program_timer._arrays if array.grad is not None and array.ndim == 2]
    assert weights and all(np.abs(weight.grad.asnumpy()).sum() > 0 for weight in weights)


def test_a_part_that_computes_more_takes_longer():
    """The difference is large: the test does not depend on precise times."""
    seconds = []
    for units in (8, 1024):
        network = graph_of(nn.Dense(units, in_units=units), (256, units))
        (one,) = operators(network, 'FullyConnected')
        keys = ProfileKeys(network.graph, collectives(), gradient_inputs={'data'})
        seconds.append(time_shard(keys.program(one, place(network.graph, one))))
    assert 0 <= call_overhead().forward < seconds[1].forward
    assert seconds[0].forward < seconds[1].forward and seconds[0].backward < seconds[1].backward


def test_the_next_time_nothing_is_measured(images, tmp_path):
    path = str(tmp_path / 'sub' / 'profiles.json')
    graph, profiles = images.graph, OperatorProfiler(path)
    operator_parts = [(operator, place(graph, operator)) for operator in operators(images, 'Activation') + operators(
        images, 'Convolution')]
    profiles.measure(graph, operator_parts)
    assert profiles.measured == len({profiles.keys(graph).key(*pair) for pair in operator_parts}) < len(operator_parts)
    parts, shares, _ = local_of(images, parallel.data_parallel(), 2)
    whole = profiles.program_seconds(parts, 0, shares)
    profiles.save()
    again = OperatorProfiler(path)
    assert [again.shard_seconds(graph, *pair) for pair in operator_parts] == [profiles.shard_seconds(graph, *pair)
                                                                              for pair in operator_parts]
    other = graph_of(images_net(), [(8, 4, 8, 8), (8,)])  # another object, other names
    parts, shares, _ = local_of(other, parallel.data_parallel(), 2)
    assert again.program_seconds(parts, 0, shares) == whole
    again.shard_seconds(other.graph, operators(other, 'Convolution')[1], operator_parts[-1][1])
    assert again.measured == 0


def test_conversions_of_layouts_are_timed_once(tmp_path, monkeypatch):
    path, shape = str(tmp_path / 'profiles.json'), (4, 32, 24, 24)
    profiles = OperatorProfiler(path, keep_busy=True)
    seconds = profiles.conversion_seconds(shape)
    assert seconds > 0 and profiles.measured == 1 and profiles.conversion_seconds(shape) == seconds
    assert profiles.measured == 1
    twice = profiles.conversion_seconds((8, 32, 24, 24), measure=False)
    assert profiles.measured == 1 and twice == pytest.approx(2 * seconds)
    # oneDNN has no blocked layout of such an array.
    assert profiles.conversion_seconds((2, 2, 2, 2, 2, 2)) > 0 and profiles.measured == 1
    profiles.save()
    assert OperatorProfiler(path, measure=False).conversion_seconds(shape) == seconds


def test_a_program_without_times_is_none_with_a_warning(images, profiles, tmp_path, monkeypatch, caplog):
    parts, shares, _ = local_of(images, parallel.data_parallel(), 2)

    def fail(program):
        raise mx.MXNetError('Error in operator conv0:\nno such kernel')
    monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.ProgramTimer', fail)
    assert profiles.program_seconds(parts, 1, shares) is None and profiles.measured == 0
    assert 'the program of rank 1 cannot be timed' in caplog.text and 'no such kernel' in caplog.text
    estimating = OperatorProfiler(str(tmp_path / 'other.json'), measure=False)
    assert estimating.program_seconds(parts, 0, shares) is None


def test_received_arrays_have_their_operators_layout(images):
    parts, shares, _ = local_of(images, parallel.grid(domain=(2,)), 2)
    convolutions = {operator.number for operator in operators(images, 'Convolution')}
    received = [local_program(ProgramSpec(parts, shares.inputs, shares.outputs, collectives()), 0, blocked).inputs
                for blocked in ((), convolutions)]
    layouts = [[value.is_blocked for name, value in inputs.items() if name.startswith('mxhybrid_received')]
               for inputs in received]
    assert len(layouts[0]) == len(layouts[1]) and not any(layouts[0]) and any(layouts[1])


def test_unmeasured_shards_are_estimated(images, tmp_path):
    path = str(tmp_path / 'profiles.json')
    graph, (first, second, _) = images.graph, operators(images, 'Convolution')
    measured = OperatorProfiler(path)
    known = measured.shard_seconds(graph, second, place(graph, second))
    measured.save()
    guessing = OperatorProfiler(path, measure=False)
    assert guessing.shard_seconds(graph, second, place(graph, second)) == known
    half = guessing.shard_seconds(graph, second, place(graph, second, d0=(0, 4)))
    assert 0 < half.forward < known.forward and 0 < half.backward < known.backward
    (pick,) = operators(images, 'pick')
    assert guessing.shard_seconds(graph, pick, place(graph, pick)).total > 0
    assert guessing.measured == 0
    assert guessing.shard_seconds(graph, first, place(graph, first)).forward > 0


def test_shards_that_are_too_large_are_estimated(images, profiles, monkeypatch, caplog):
    """Here by a bound that whole convolutions exceed, and those of a row of an image do not."""
    graph = images.graph
    pairs = [(operator, place(graph, operator, **cut)) for operator in operators(images, 'Convolution')
             for cut in ({}, {'d0': (0, 1), 'd2': (0, 1)})]
    sizes = {profiles.keys(graph).key(operator, of):
             work(images, operator, of).bytes for operator, of in pairs}
    bound = sorted(sizes.values())[len(sizes) // 2] - 1
    small = {key for key, size in sizes.items() if size <= bound}
    monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.MAX_BYTES', bound)
    assert 0 < profiles.measure(graph, pairs) == len(small) == profiles.measured < len(sizes)
    assert '%d shards of operators read and write more than' % (len(sizes) - len(small)) in caplog.text
    for operator, of in pairs:
        assert min(profiles.shard_seconds(graph, operator, of)) > 0
    assert profiles.measured == len(small) and profiles.measure(graph, pairs) == 0


def test_parts_of_like_operators_share_a_key(images, words):
    keys_by_operator = {}
    for network in (images, words):
        graph, keys = network.graph, ProfileKeys(network.graph, collectives())
        for one in graph.computing:
            places = [place(graph, one, **cut) for cut in ({}, {'d0': (0, 2)}, {'d0': (2, 4)})]
            keys_by_operator.setdefault(keys.operator_key(one), set()).add(tuple(keys.key(one, of) for of in places))
    assert all(len(every) == 1 for every in keys_by_operator.values())
    graph, keys = images.graph, ProfileKeys(images.graph, collectives())
    convolutions = operators(images, 'Convolution')
    first, second, third = map(keys.operator_key, convolutions)
    assert first != second == third
    frozen = [graph.operators[convolutions[1].inputs[1][0]].name]
    assert ProfileKeys(graph, collectives(), frozen=frozen).operator_key(convolutions[1]) != second


def test_a_part_takes_something_whatever_the_call_took(images, monkeypatch):
    monkeypatch.setattr(timer, 'call_overhead', lambda: PassSeconds(1e9, 1e9))
    (one,) = operators(images, 'BatchNorm')
    keys = ProfileKeys(images.graph, collectives())
    assert 0 < min(time_shard(keys.program(one, place(images.graph, one))))


def test_needed_shards_too_large_are_timed_by_pieces(images, profiles, monkeypatch):
    graph, operator = images.graph, operators(images, 'Convolution')[1]
    whole = place(graph, operator)
    whole_work = work(images, operator, whole)
    monkeypatch.setattr('mxhybrid.planner.profiling.operator_profiler.MAX_BYTES', whole_work.bytes / 2)
    assert profiles.measure(graph, [(operator, whole)]) == profiles.measured == 0
    assert profiles.measure(graph, [(operator, whole)], needed={(operator.number, whole)}) == profiles.measured == 1
    assert min(profiles.shard_seconds(graph, operator, whole, measure=False)) > 0
    (kept,) = read_profiles(profiles.path)['parts'].values()
    assert kept[2:] == list(whole_work)


@pytest.mark.parametrize('cut, is_joint', [({}, False), ({'d0': (4, 8)}, True)])
def test_a_scaled_shard_has_the_collectives_of_its_shard(images, cut, is_joint):
    """Halves of a batch whose statistics are its own have no joint ones."""
    graph, keys, (operator,) = images.graph, ProfileKeys(images.graph, collectives()), operators(images, 'BatchNorm')
    whole = place(graph, operator, **cut)
    size = work(images, operator, whole).bytes
    for share in (1, 2, 4):
        piece = scaled_shard(graph, operator, whole, 1.1 * size / share)
        samples, *rest = (high - low for low, high in piece.output_shard.box)
        assert (samples * share, rest) == (whole.box[0][1] - whole.box[0][0], [8, 8, 8])
        program = keys.program(operator, piece.output_shard, whole)
        assert (samples, 8, 8, 8) in [value.shape for value in program.inputs.values()]
        assert any('mxhybrid_received' in name for name in program.symbol.get_internals().list_outputs()) == is_joint


def test_shards_that_cannot_be_cut_have_no_piece(words):
    graph, (layer,) = words.graph, operators(words, 'RNN')
    whole = place(graph, layer)
    assert scaled_shard(graph, layer, whole, 1e9).output_shard == whole
    assert scaled_shard(graph, layer, whole, 10.0) is None
    convolution = graph_of(nn.Conv2D(64, 3, in_channels=64), (1, 64, 64, 64)).graph
    (one,) = convolution.computing
    rows = scaled_shard(convolution, one, place(convolution, one, d1=(0, 1)), 3e5)
    assert [high - low for low, high in rows.output_shard.box] in ([1, 1, 15, 62], [1, 1, 62, 15])


def test_redistributions_of_other_ranks_are_left_out(monkeypatch):
    """The redistributions among 512 ranks would take many seconds to compute."""
    all_messages = []

    def record(layout, needed):
        all_messages.extend(messages(layout, needed))
        return messages(layout, needed)
    monkeypatch.setattr(redistribution, 'messages', record)
    net = nn.HybridSequential(prefix='net_')
    net.add(nn.Dense(512, in_units=512), nn.BatchNorm(in_channels=512))
    network = graph_of(net, (512, 512))
    graph, keys = network.graph, ProfileKeys(network.graph, collectives())
    (dense,), (norm,) = operators(network, 'FullyConnected'), operators(network, 'BatchNorm')
    program = keys.program(dense, OutputShard(place(graph, dense).box, 0, 512))
    assert {value.shape for value in program.inputs.values()} >= {(512, 1)}
    program = keys.program(norm, place(graph, norm, d0=(0, 1)))
    assert {message.target for message in all_messages} == {0} and len(all_messages) <= 2 * 512
    internals = program.symbol.get_internals()
    _, shapes, _ = internals.infer_shape(**{name: value.shape for name, value in program.inputs.items()})
    statistics = dict(zip(internals.list_outputs(), shapes))['mxhybrid_received0_output2']
    assert statistics == ((1 + 512) * 2 * 512,)  # of all channels: joint ones, and those of 512 parts


def test_estimates_are_scaled_to_their_neighbours():
    timed = Work(1e9, 1e6)
    twice = OperatorTime('Convolution', timed, 2 * roofline_seconds(timed), 5 * roofline_seconds(timed))
    other = OperatorTime('FullyConnected', timed, 9.0, 9.0)
    for factor in (0.5, 1, 4):
        estimated = Work(timed.flop * factor, timed.bytes * factor)
        forward, backward = RooflineEstimator([other, twice]).estimate('Convolution', estimated)
        assert forward == pytest.approx(2 * roofline_seconds(estimated)) and backward == pytest.approx(2.5 * forward)
    near, far = (OperatorTime('Pooling', Work(size, size), roofline_seconds(Work(size, size)) * ratio, 0.0)
                 for size, ratio in ((1e6, 2), (1e9, 8)))
    estimated = Work(2e6, 2e6)
    assert 2 <= RooflineEstimator([near, far]).estimate('Pooling', estimated)[0] / roofline_seconds(estimated) < 3
    assert RooflineEstimator().estimate('Pooling', timed) == (roofline_seconds(timed), 2 * roofline_seconds(timed))


def test_work_is_counted(images, words):
    def whole_work(network, op, number=0):
        operator = operators(network, op)[number]
        return work(network, operator, place(network.graph, operator))
    assert whole_work(images, 'Convolution', 1) == Work(2 * 8 * 8 * 64 * 8 * 9, 4 * (2 * 8 * 8 * 64 + 8 * 8 * 9 + 8))
    assert whole_work(images, 'FullyConnected').flop == 2 * 8 * 12 * 512
    assert whole_work(words, 'RNN').flop == 2 * 7 * 4 * (4 * 5 * (6 + 5) + 8 * 5)
    assert whole_work(words, 'Embedding').bytes == 4 * 2 * 7 * 4 * 6


def test_ranks_together_are_not_estimated_from_a_rank_alone():
    graph = graph_of(nn.HybridLambda('log_softmax'), (8, 40)).graph
    (operator,), keys = graph.computing, ProfileKeys(graph, collectives())
    assert keys.kind(operator, place(graph, operator, d0=(0, 4))) == 'log_softmax'
    together = place(graph, operator, d1=(0, 10))
    assert keys.kind(operator, together) == 'log_softmax+' == keys.key(operator, together).split()[0]
    timed = Work(1e6, 1e6)
    alone, jointly = OperatorTime('log_softmax', timed, 1.0, 1.0), OperatorTime('log_softmax+', timed, 9.0, 9.0)
    assert RooflineEstimator([alone, jointly]).estimate('log_softmax', timed) == pytest.approx((1.0, 1.0))
    assert RooflineEstimator([alone, jointly]).estimate('log_softmax+', timed) == pytest.approx((9.0, 9.0))
    assert RooflineEstimator([alone]).estimate('log_softmax+', timed) == pytest.approx((1.0, 1.0))


def products(F, both, queries, left, right, table, ids):
    """Return the products of attention, of queries, keys and values for 4 heads of 6 features."""
    two_thirds = F.slice_axis(both, axis=2, begin=0, end=48)
    scores = F.contrib.interleaved_matmul_selfatt_qk(both, heads=4)
    cross = F.contrib.interleaved_matmul_encdec_qk(queries, two_thirds, heads=4)
    return (F.contrib.interleaved_matmul_selfatt_valatt(both, scores, heads=4),
            F.contrib.interleaved_matmul_encdec_valatt(two_thirds, cross, heads=4),
            F.batch_dot(left, right, transpose_b=True), F.linalg.gemm2(left, right, transpose_a=True),
            F.dot(table, table, transpose_a=True), F.take(table, ids))


def test_work_of_attention_is_counted():
    shapes = [(5, 3, 72), (7, 3, 24), (12, 8, 6), (12, 8, 6), (100, 24), (3, 2)]
    network = traced(Net(lambda: [], products), shapes, [1, 1, 0, 0, None, None])

    def counted(op, **ranges):
        (operator,) = operators(network, op)
        flop, size_bytes = work(network, operator, place(network.graph, operator, **ranges))
        return flop, size_bytes / 4
    scores, across = 12 * 5 * 5, 12 * 7 * 5
    # 3 samples of 4 heads with 6 features; 5 times of self-attention, 7 times of queries between sequences.
    assert counted('_contrib_interleaved_matmul_selfatt_qk') == (2 * scores * 6, scores + 2 * 5 * 3 * 24)
    assert counted('_contrib_interleaved_matmul_selfatt_qk', d0=(1, 2)) == (2 * 100 * 6, 100 + 2 * 5 * 24)
    assert counted('_contrib_interleaved_matmul_selfatt_qk', d1=(1, 3)) == (scores * 6, scores / 2 + 5 * 3 * 24)
    assert counted('_contrib_interleaved_matmul_selfatt_valatt') == (2 * scores * 6, scores + 2 * 5 * 3 * 24)
    assert counted('_contrib_interleaved_matmul_encdec_qk') == (2 * across * 6, across + 7 * 3 * 24 + 5 * 3 * 24)
    assert counted('_contrib_interleaved_matmul_encdec_qk', d2=(0, 3)) == (2 * 180 * 6, 180 + 3 * 3 * 24 + 5 * 3 * 24)
    assert counted('_contrib_interleaved_matmul_encdec_valatt') == (2 * across * 6, across + 7 * 3 * 24 + 5 * 3 * 24)
    assert counted('batch_dot')[0] == 2 * 12 * 8 * 8 * 6
    assert counted('batch_dot', d0=(0, 3), d2=(0, 4))[0] == 2 * 3 * 8 * 4 * 6
    assert counted('_linalg_gemm2')[0] == 2 * 12 * 6 * 6 * 8
    assert counted('dot')[0] == counted('dot', d1=(0, 12))[0] * 2 == 2 * 24 * 24 * 100
    assert counted('take') == (6 * 24 * 2 + 6, 6 * 24 * 2 + 6)


def test_positions_do_not_limit_the_counted_ids():
    """Positions of words are counted by the length of an array of embeddings."""
    def call(F, ids, words, positions):
        rows = words(ids)
        return F.broadcast_add(rows, positions(F.contrib.arange_like(rows, axis=1)))
    graph = graph_of(Net(lambda: [nn.Embedding(100, 6), nn.Embedding(9, 6)], call), (4, 9)).graph
    limits = {graph.operators[number].op: limit for number, limit in index_limits(graph).items()}
    assert limits == {'null': 100, '_contrib_arange_like': 9}


def test_an_unwritable_file_is_told_and_times_stay(images, tmp_path, caplog):
    (tmp_path / 'profiles.json.lock').mkdir()
    profiles, seconds = OperatorProfiler(str(tmp_path / 'profiles.json')), []
    for operator in operators(images, 'Activation'):
        seconds.append(profiles.shard_seconds(images.graph, operator, place(images.graph, operator)))
        profiles.save()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and 'cannot be kept in' in messages[0] and 'XDG_CACHE_HOME' in messages[0]
    again = [profiles.shard_seconds(images.graph, operator, place(images.graph, operator))
             for operator in operators(images, 'Activation')]
    assert again == seconds
    assert profiles.measured == 1
