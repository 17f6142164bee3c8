"""The planner: which times a search asks for, and which arguments it refuses."""
import dataclasses
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxhybrid import parallel
from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.plans.pipeline_plan import pipeline
from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.planner import predictor
from mxhybrid.planner.planner import Planner, search
from mxhybrid.planner.profiling.operator_profiler import OperatorProfiler
from mxhybrid.planner.profiling.profile_key import ProfileKeys
from mxhybrid.planner.profiling.timer import PassSeconds
from mxhybrid.planner.reports import prediction_table as prediction_table_module
from mxhybrid.planner.reports.prediction_table import plan_report, prediction_summary, prediction_table
from mxhybrid.planner.task_graph.operator_tasks import OperatorTasks
from mxhybrid.planner.task_graph.prediction import Prediction
from tests.helpers.gluon_nets import Net, initialised
from tests.helpers.planned_networks import BATCH, Times, cluster, gpt, make_planner, mixture, network, transformer

#: The shapes of the inputs of a language model.
WORDS = [(8, 8)] * 2


class Counted(Times):
    """Counts the shards that are measured, each once."""

    def __init__(self):
        self.known, self.measured = set(), 0

    def shard_seconds(self, graph, operator, output_shard, measure=True, **_):
        self.measured += self._is_new(operator, output_shard) if measure else 0
        return super().shard_seconds(graph, operator, output_shard)

    def measure(self, graph, shards, **_):
        new = sum(self._is_new(operator, output_shard) for operator, output_shard in shards)
        self.measured += new
        return new

    def _is_new(self, operator, output_shard):
        new = (operator.number, output_shard) not in self.known
        self.known.add((operator.number, output_shard))
        return new


def test_the_next_search_measures_nothing():
    profiles = Counted()
    net, on = network(), cluster(4, rate=1e6)
    first = Planner(net, (BATCH, 3, 8, 8), on, profiles).search(seconds=None, proposals=100, seed=1)
    timed = profiles.measured
    assert timed > 0
    for seed in range(2, 6):
        again = Planner(net, (BATCH, 3, 8, 8), on, profiles)
        best = again.search(seconds=None, proposals=100, seed=seed)
        assert best.prediction.seconds > 0
        # Readers of its result do not change it either.
        table = prediction_table(again.network, again.splits(best.plan), best.prediction)
        assert table.count('\n') > len(again.graph.computing) and best.prediction.critical_path()
        assert profiles.measured == timed
    # A plan that is asked for by itself is timed as it is.
    assert again.predict(first.plan).seconds == first.prediction.seconds


def test_a_report_shows_the_stages_of_a_pipeline():
    planner, plan = make_planner(cluster(2), gpt(), WORDS), pipeline(2, 4)
    report = plan_report(planner.network_of(plan), planner.cluster, plan, planner.splits(plan), planner.predict(plan),
                         planner.stages(plan))
    assert 'pipeline of 2 stages, 4 micro-batches, 1f1b' in report
    assert 'stage 0 on ranks 0: ' in report and 'stage 1 on ranks 1: ' in report
    assert 'for the joint batch' not in report


@pytest.mark.parametrize('wrong, words', [
    ({'seconds': float('inf')}, 'seconds=inf: give a number of at least 0 and at most 1.79769e+308, or None'),
    ({'seconds': float('nan')}, 'seconds=nan'), ({'seconds': '5'}, "seconds='5'"), ({'seconds': -1}, 'seconds=-1'),
    ({'proposals': 2.5}, 'proposals=2.5: give a whole number of at least 0, or None'), ({'patience': 0}, 'patience=0'),
    ({'seed': None}, 'seed=None: give a whole number of at least 0 and at most'), ({'seed': -1}, 'seed=-1'),
    ({'memory_bytes': 'x'}, "memory_bytes='x'"), ({'memory_bytes': float('nan')}, 'memory_bytes=nan'),
    ({'seed': True}, 'seed=True: give a whole number'),
    ({'start': 5}, 'start=5: give a plan'), ({'seconds': None}, 'never ends'),
    ({'start': data_parallel().with_recompute('*')}, "recompute=['*']: the planner predicts neither")], ids=str)
def test_searches_are_refused_that_cannot_be(wrong, words):
    with pytest.raises(InputError, match=re.escape(words)):
        make_planner(cluster(2)).search(**{'seconds': 0.1, **wrong})


def test_numbers_of_numpy_are_numbers():
    planner = make_planner(cluster(2), data=tuple(np.array((BATCH, 3, 8, 8))))
    given = planner.search(np.float32(60), np.int64(20), np.int64(1), np.float64(1e9), patience=np.int32(20))
    assert given.search_result == planner.search(60, 20, 1, 1e9, patience=20).search_result._replace(
        elapsed=given.search_result.elapsed)


def test_no_plan_exceeds_a_ranks_memory():
    def limited(most):
        hosts = [dataclasses.replace(host, memory_bytes=None if most is None else 2 * most)
                 for host in cluster(2, ranks=2, rate=1e6).hosts]
        return dataclasses.replace(cluster(2, ranks=2, rate=1e6), hosts=tuple(hosts))

    def searched(most, **keys):
        return make_planner(limited(most)).search(None, 200, **keys)
    free = searched(None)
    least = min(point.bytes for point in free.front)
    assert least < free.prediction.largest_memory()
    assert searched(int(least)).prediction.largest_memory() <= least
    assert searched(1, memory_bytes=1e9).prediction.seconds == free.prediction.seconds
    with pytest.raises(InputError, match='more than the limit of 1 bytes, or than memory_bytes of its host'):
        searched(1)
    planner = make_planner(limited(1))
    found = planner.predict(data_parallel())
    summary = prediction_summary(planner.graph, planner.cluster, planner.splits(data_parallel()), found)
    assert summary[-1].startswith('that is more than the 1 B')


def test_the_layer_with_most_summed_weights_is_split():
    """Name the layer of a large matrix, in whose bucket the vectors of a normalization are summed."""
    on = cluster(2, rate=1e6)
    planner = make_planner(on, initialised(Net(
        lambda: [nn.BatchNorm(in_channels=3), nn.Dense(4, in_units=3 * 64), nn.Dense(5, in_units=4)])))
    layers = planner.predict(data_parallel()).layers_to_split()
    assert layers == {'net_batchnorm0_gamma to net_dense1_bias': 'dense0_fwd'}
    planner = make_planner(on, initialised(Net(lambda: [nn.BatchNorm(in_channels=3)])))
    prediction = planner.predict(data_parallel())
    assert prediction.layers_to_split() == {}
    words = prediction_summary(planner.graph, planner.cluster, planner.splits(data_parallel()), prediction)
    assert not any('split' in line for line in words if 'summing' in line or 'updating' in line)


def test_a_network_without_parameters_is_planned():
    net = nn.HybridLambda(lambda F, data: F.tanh(data))
    assert 'formula' not in make_planner(cluster(2), net).starts()
    assert make_planner(cluster(2), net).search(None, 10).prediction.seconds > 0


def test_a_block_of_bert_is_planned_completely(tmp_path, caplog):
    """Ids of its positions come of an activation."""
    profiles = OperatorProfiler(str(tmp_path / 'profiles.json'))
    best = Planner(transformer(), [(4, 10), (4, 10), (4,)], cluster(2), profiles).search(seconds=None, proposals=20)
    assert profiles.measured > 20 and best.prediction.seconds > 0
    assert 'cannot be timed' not in caplog.text


def test_draws_after_a_search_do_not_depend_on_measurements(tmp_path):
    drawn = []
    for _ in range(2):  # the first times all, the second nothing
        mx.random.seed(5)
        net = initialised(Net(lambda: [nn.Dense(4, in_units=3), nn.Dropout(0.5)]))
        search(net, (BATCH, 3), cluster(2), None, 5, profiles=tmp_path / 'profiles.json')
        drawn.append(mx.nd.random.uniform(shape=(3,)).asnumpy())
    np.testing.assert_array_equal(*drawn)


def followed(planner, splits):
    """Return the splits of all operators, given those of the operators that a search decides about."""
    return planner._space.complete({number: splits[number] for number in planner._space.deciding})


@pytest.mark.parametrize('layers', [2, 12])
def test_repeated_layers_of_attention_keep_their_ranks(layers):
    planner = make_planner(cluster(4, rate=1e5), gpt(layers), WORDS)
    # Embedding and head alone, and each of the six dense layers of a block in all blocks.
    assert [len(group) for group in planner._space.groups] == [1] + [layers] * 6 + [1]
    # Heads are split off and joined by reshapes and transposes: nothing leaves the rank that computes all.
    alone = planner.splits(planner.starts()['one worker'])
    assert {split.ranks for split in alone.values()} == {(0,)}
    for splits in (alone, planner.splits(data_parallel())):
        assert followed(planner, splits) == splits
    best = planner.search(seconds=None, proposals=200, seed=1)
    # The link is slow: no plan that sums gradients is as fast as one worker alone.
    assert best.prediction.seconds < 0.2 * best.plain.seconds


def test_searches_begin_with_tensor_parallelism_of_heads():
    starts = make_planner(cluster(4), gpt(heads=2), WORDS).starts()
    assert [name for name in starts if name.startswith('megatron')] == ['megatron of model 2 x batch 2']
    dense = make_planner(cluster(4), initialised(nn.Dense(8, in_units=8)), (8, 8))
    assert not any(name.startswith('megatron') for name in dense.starts())


def test_experts_are_divided_where_that_is_faster():
    planner = make_planner(cluster(4, rate=1e8), mixture(), (16, 64))
    labels = {planner.graph.label(operator): operator.number for operator in planner.graph.computing}
    with_experts = ('broadcast_axis0', 'batch_dot0', 'relu0', 'batch_dot1', 'broadcast_mul0')
    splits = planner.splits(planner.starts()['megatron of model 4'])
    # Operators that follow are split as the plan splits them.
    all_splits = followed(planner, splits)
    for label in with_experts + ('sum0',):
        assert all_splits[labels[label]] == splits[labels[label]], label
    best = planner.search(seconds=None, proposals=300, seed=2)
    assert all(best.plan.splits[label].degrees == (4, 1, 1) for label in with_experts[1:])
    assert best.plan.splits['sum0'].partials == 4
    assert best.prediction.seconds < 0.5 * best.others['data parallel'].seconds
    assert 'batch_dot0' in best.others['data parallel'].layers_to_split().values()


def test_one_host_is_a_start_of_searches():
    planner = make_planner(cluster(2, 2, rate=1e5), gpt(), WORDS)
    splits = planner.splits(planner.starts()['one host'])
    assert {split.ranks for split in splits.values()} == {(0, 1)}
    assert 'one host' not in make_planner(cluster(4, 1), gpt(), WORDS).starts()


def test_bad_clusters_and_counts_are_refused():
    with pytest.raises(InputError, match='profiles=5: give the name of a file'):
        search(network(), (BATCH, 3, 8, 8), cluster(2), profiles=5)
    with pytest.raises(InputError, match='cluster=5: give the name of a file, or a Cluster'):
        search(network(), (BATCH, 3, 8, 8), 5)
    with pytest.raises(InputError, match='states=-1: give a whole number of at least 0'):
        make_planner(cluster(2), states=-1)


def test_like_operators_are_predicted_once_and_equally():
    net = initialised(Net(lambda: [nn.Dense(16, in_units=16) for _ in range(4)]))
    planner = make_planner(cluster(4, rate=1e6), net, (BATCH, 16))
    asked, seconds = {}, {}
    keys = ProfileKeys(planner.graph, collectives())
    for name, alike in (('each', lambda operator: operator.number), ('alike', keys.operator_key)):
        asked[name] = []

        def shard_time(operator, output_shard, part, name=name):
            asked[name].append((operator.number, output_shard))
            return Times().shard_seconds(planner.graph, operator, output_shard)
        times = planner._times(planner.graph, False)._replace(shard_time=shard_time, alike=alike)
        model = OperatorTasks(planner.model.dataflow, planner.model.machine, times)
        seconds[name] = [Prediction(model, planner.splits(plan)).seconds for plan in planner.starts().values()]
    assert seconds['alike'] == seconds['each']
    # Through the first layer no gradient goes back.
    assert len({one for one, _ in asked['each']}) == 4 and len({one for one, _ in asked['alike']}) == 2


def test_a_plan_is_compared_with_the_network_without_one():
    """The network without a plan has BatchNorms that exchange nothing."""
    planner = make_planner(on=cluster(4, rate=1e5))
    plain, joint = planner.plain(), planner.predict(data_parallel())
    assert 0 < plain.seconds < joint.seconds
    result = planner.search(seconds=None, proposals=50, seed=1)
    assert result.plain.seconds == plain.seconds
    assert result.name == 'data parallel' or result.prediction.seconds < plain.seconds
    net = initialised(Net(lambda: [nn.Dense(64, in_units=32), nn.Dense(8, in_units=64)]))
    result = make_planner(cluster(4, rate=1e5), net, (BATCH, 32)).search(seconds=None, proposals=50, seed=1)
    assert result.plain is result.others.get('data parallel', result.prediction)


def reversed_net(change=lambda F, data: F.reverse(data, axis=0)):
    """Return a network of a dense layer after a change that mixes all samples of a batch."""
    return initialised(Net(lambda: [nn.Dense(640, in_units=64)], lambda F, data, dense: dense(change(F, data))))


def test_a_network_without_plan_is_not_split():
    """Each worker computes for its own samples only, where data parallelism computes for the joint batch."""
    on = cluster(4, rate=1e9)
    planner = make_planner(on, gpt(), WORDS)
    assert planner.plain().seconds == pytest.approx(planner.predict(data_parallel()).seconds, rel=1e-6)
    planner = make_planner(on, reversed_net(), (BATCH, 64))
    plain, parallel = planner.plain(), planner.predict(data_parallel())
    dense_s = 1e-6 * 3 * BATCH * 640
    assert plain.seconds_of()['dense0_fwd'][0] == pytest.approx(dense_s / 4)
    assert parallel.seconds_of()['dense0_fwd'][0] == pytest.approx(dense_s)
    assert plain.seconds < parallel.seconds - dense_s / 2
    best = planner.search(seconds=None, proposals=0)
    assert best.plain.seconds == plain.seconds


def test_a_network_may_state_the_joint_batch():
    net = reversed_net(lambda F, data: F.reshape(F.reverse(data, axis=0), shape=(BATCH, 64)))
    planner = make_planner(cluster(4, rate=1e9), net, (BATCH, 64))
    assert planner.plain().seconds == planner.predict(data_parallel()).seconds


def test_joint_batch_operators_are_reported_with_cost(monkeypatch):
    planner, plan = make_planner(cluster(4), reversed_net(), (BATCH, 64)), data_parallel()

    def report_lines():
        return plan_report(planner.network, planner.cluster, plan, planner.splits(plan),
                           planner.predict(plan)).split('\n')
    assert any(line.startswith('dense0_fwd: 15.4 ms a step whole on every worker, 4 times the work of a shard each')
               for line in report_lines())
    monkeypatch.setattr(prediction_table_module, '_SHOWN', 1)
    assert '1 other operators: 0.000512 ms a step for the joint batch' in report_lines()


@pytest.mark.parametrize('scale', [(1.5, 0.5), (2.0, 1.0)])
def test_computation_takes_the_time_of_whole_programs(scale):
    """Redistributions, sums and updates take as long as before."""
    planner = make_planner()
    plan = parallel.grid(domain=(2,), batch=2)
    before = planner.predict(plan)
    seconds = planner.model.rank_seconds(planner.splits(plan))
    rank = int(seconds.sum(axis=0).argmax())
    timed = []

    def program_seconds(parts, rank, shares, frozen, blocked):
        timed.append((rank, blocked))
        return PassSeconds(*(seconds[:, rank] * scale))
    planner._profiles.program_seconds = program_seconds
    scaled = planner.predict(plan)
    assert timed and timed[0][0] == rank

    def seconds_of(prediction, kinds):
        tasks = [task for task in prediction.tasks() if task.where == 0 and task.kind in kinds]
        return sum(task.end_s - task.start_s for task in tasks)
    for kind, factor in zip(('forward', 'backward'), scale):
        assert seconds_of(scaled, [kind]) == pytest.approx(factor * seconds_of(before, [kind]), rel=1e-6)
    others = {task.kind for task in before.tasks()} - {'forward', 'backward'}
    assert seconds_of(scaled, others) == pytest.approx(seconds_of(before, others), rel=1e-6)


@pytest.mark.parametrize('limit', ['_MOST_PROGRAM_S', '_MOST_PROGRAM_BYTES', '_MOST_SHARDS'])
def test_large_programs_are_not_timed_as_a_whole(limit, monkeypatch):
    planner, calls = make_planner(), []
    monkeypatch.setattr(planner._profiles, 'program_seconds', lambda *_, **__: calls.append(1), raising=False)
    planner.predict(data_parallel())
    assert calls == [1]
    monkeypatch.setattr(predictor, limit, 0)
    planner.predict(data_parallel())
    assert calls == [1]
