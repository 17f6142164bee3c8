"""Blocks of a step: a proposal gives the blocks of a new step; redistributions move the bytes of split networks."""
import dataclasses
import functools

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.registry import collective_of, collectives
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.strategies import Layers, data_parallel, grid, one_weird_trick
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import Program, ProgramSpec
from mxhybrid.parallel.sharding import sum_steps
from mxhybrid.parallel.sharding.split import Split
from mxhybrid.planner.cluster.cluster_spec import Host, TransferCost
from mxhybrid.planner.search.plan_evaluator import PlanEvaluator, random_decisions
from mxhybrid.planner.simulator.resource_groups import TokenBucket
from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.task_graph import memo
from mxhybrid.planner.task_graph.operator_tasks import OperatorTasks
from mxhybrid.planner.task_graph.step_tasks import StepTasks
from tests.helpers.gluon_nets import Net, initialised
from tests.helpers.planned_networks import BATCH, SLOWED, Times, cluster, gpt, make_planner, network, recommender
from tests.oracles.event_loop import simulate
from tests.oracles.redistribution import reversed_transfers
from tests.oracles.transfer_tasks import PythonTransferTasks

RANKS = 4


class UnusedRedistribution:
    """A redistribution in a graph that never runs."""

    def __init__(self, redistribution, differentiable):
        self._redistribution = redistribution

    def symbol(self, token, array, plain=False):
        received = mx.sym.var('got%d' % self._redistribution.number, shape=self._redistribution.shapes[1])
        return token, None if self._redistribution.shapes[1] is None else received

    def joint_norm(self, token, data, parameters, norm):
        return None

    def ending(self, output):
        return output

    def release(self):
        pass


def joint_attention(heads=4, features=2, width=6):
    """Return self-attention of (times, samples, features) whose projection has a weight that is made of three."""
    def call(F, data, out, **parts):
        weights = [F.reshape(parts[name], shape=(heads, -1, width)) for name in names]
        joint = F.reshape(F.concat(*weights, dim=1), shape=(-3, 0))
        apart = F.FullyConnected(data, joint, num_hidden=3 * heads * features, no_bias=True, flatten=False)
        scores = F.softmax(F.contrib.interleaved_matmul_selfatt_qk(apart, heads=heads))
        return out(F.contrib.interleaved_matmul_selfatt_valatt(apart, scores, heads=heads))
    names = 'query_weight', 'key_weight', 'value_weight'
    return Net(lambda: [nn.Dense(width, in_units=heads * features, flatten=False)], call,
               **{name: {'shape': (heads * features, width)} for name in names})


NETWORKS = {
    'convolutions': lambda: make_planner(cluster(RANKS)),
    'attention': lambda: make_planner(cluster(RANKS), initialised(joint_attention()), (5, 8, 6), batch_axis=1),
    'tables': lambda: make_planner(cluster(2, RANKS // 2), recommender(), (BATCH, 20))}
without_tables = pytest.mark.parametrize('name', ['convolutions', 'attention'])


@functools.lru_cache(maxsize=None)
def planner_of(name):
    return NETWORKS[name]()


@pytest.fixture(scope='module')
def planner():
    return planner_of('convolutions')


def problem_of(planner):
    return PlanEvaluator(planner.model, planner._space)


def drawn_plan(problem, data):
    return tuple(data.draw(st.sampled_from(list(problem.candidates(index)))) for index in range(problem.operators))


def drawn_splits(planner, data):
    problem = problem_of(planner)
    return problem.splits(drawn_plan(problem, data))


def python_model_of(planner):
    """Return the model of a planner with transfers in Python."""
    machine = planner.model.machine
    times = planner._times(planner.graph, False)._replace(alike=lambda operator: operator.number, arithmetic_share=None)
    return OperatorTasks(planner.model.dataflow, machine, times, transfer_tasks=PythonTransferTasks(machine))


@pytest.mark.parametrize('name', NETWORKS)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_proposals_give_the_blocks_of_a_new_step(name, data):
    planner, steps = planner_of(name), data.draw(st.integers(1, 2))
    problem = problem_of(planner)
    plans = [(problem.splits(plan), problem.tables(plan)) for plan in (drawn_plan(problem, data) for _ in range(4))]
    step_tasks = StepTasks(planner.model, plans[0][0], steps, plans[0][1])
    simulation = Simulation(planner.model.machine.resources)
    simulation.run(step_tasks.blocks.values())
    for splits, tables in plans[1:]:
        seconds = simulation.propose(step_tasks.propose(splits, tables))
        expected = StepTasks(planner.model, splits, steps, tables)
        assert set(step_tasks.blocks) == set(expected.blocks)
        assert seconds == Simulation(planner.model.machine.resources).run(expected.blocks.values())
        np.testing.assert_array_equal(step_tasks.memory, expected.memory)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_proposal_is_rolled_back(planner, data):
    first, second, third = (drawn_splits(planner, data) for _ in range(3))
    step_tasks = StepTasks(planner.model, first, 2)
    step_tasks.propose(second)
    before, memory = dict(step_tasks.blocks), step_tasks.memory.copy()
    step_tasks.propose(third)
    step_tasks.rollback()
    assert step_tasks.blocks == before
    assert {number: operator.split for number, operator in step_tasks._operators.items()} == second
    np.testing.assert_array_equal(step_tasks.memory, memory)
    expected = StepTasks(planner.model, third, 2).blocks
    assert set(step_tasks.propose(third)) >= {key for key in expected if key not in before}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([0.2, 0.7, 0.95, 1.0, 1.2]), st.sampled_from([1e5, 1e7, 1e9]))
def test_proposals_beyond_a_limit_give_a_lower_bound(data, share, rate):
    problem = problem_of(make_planner(cluster(2, RANKS // 2, rate, burst=2e3, peak=2e9)))
    start, other = (drawn_plan(problem, data) for _ in range(2))
    begun = problem.begin(start), problem.memory()
    changes = dict(enumerate(other))
    exact = problem.propose(changes), problem.memory()
    problem.reject()
    sizes = []

    def limit(size_bytes):
        sizes.append(size_bytes)
        return share * exact[0]
    seconds = problem.propose(changes, limit)
    assert sizes == [exact[1]]
    assert seconds == exact[0] if share >= 1 else share * exact[0] < seconds <= exact[0]
    problem.reject()
    assert (problem.propose({}), problem.memory()) == begun
    problem.accept()
    assert problem.propose(changes) == exact[0]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_tasks_are_the_same_bits_in_both_languages(data):
    planner = make_planner(cluster(2, RANKS // 2, rate=3e6, cost=TransferCost(1e-4, 1.1e-5, 1.3e-9, 7e-6)))
    compiled_model, python_model = planner.model, python_model_of(planner)
    splits = drawn_splits(planner, data)
    compiled, expected = (StepTasks(model, splits, 2) for model in (compiled_model, python_model))
    assert set(compiled.blocks) == set(expected.blocks)
    for key, block in compiled.blocks.items():
        content, expected_content = block.content, expected.blocks[key].content
        for name in ('work', 'latency', 'order', 'resource', 'second', 'high_priority', 'kind_code', 'inner_end'):
            np.testing.assert_array_equal(content.tasks[name], expected_content.tasks[name])
        np.testing.assert_array_equal(content.output_tasks, expected_content.output_tasks)
        assert successors(content) == successors(expected_content)
        loads = [model.load([step_tasks._built[key].subgraph])
                 for model, step_tasks in ((compiled_model, compiled), (python_model, expected))]
        np.testing.assert_array_equal(*loads)


def successors(content):
    """Return the successors of each task, in order."""
    return [sorted(content.successors[start:end].tolist())
            for start, end in content.tasks[['inner', 'inner_end']].tolist()]


@without_tables
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_redistributions_are_those_of_split_networks(name, data):
    check_redistributions(planner_of(name), drawn_splits(planner_of(name), data))


@pytest.mark.parametrize('saved_bytes, count', [(1, 5), (None, 0)])
@pytest.mark.parametrize('sequence', [False, True])
def test_redistributions_of_megatron_are_those_of_split_networks(monkeypatch, sequence, saved_bytes, count):
    """Sums that every rank of a group needs are made in two steps, if they are large enough."""
    if saved_bytes:
        monkeypatch.setattr(sum_steps, 'MIN_SAVED_BYTES', saved_bytes)
    planner = make_planner(cluster(), gpt(heads=4), [(BATCH, 8)] * 2)
    in_two_steps = check_redistributions(planner, planner.splits(megatron(4, sequence=sequence)))
    # After the embedding, two layers of each block, and `pick`.
    assert in_two_steps == (0 if sequence or not saved_bytes else count + 1)


def check_redistributions(planner, splits):
    """Compare the predicted redistributions of splits with those of the programs of split networks; return the number
    of sums in two steps.
    """
    graph, model = planner.graph, planner.model
    shares = InputShards(graph, planner.network.axes, planner.network.dimensions, RANKS, 0, set())
    program = Program(ProgramSpec(NetworkShards(graph, splits), shares.inputs, shares.outputs, collectives()), 0,
                      UnusedRedistribution, 0)
    expected = sorted(redistribution.bytes for redistribution in program.redistributions)
    predicted, in_two_steps = [], 0
    operators = {number: model.operator(number, split) for number, split in splits.items()}
    for entry, consumers in model.dataflow.consumers.items():
        producer_and_readers = [operators.get(entry[0])] + [operators.get(number) for number, _ in consumers]
        itemsize = graph.dtypes[entry].itemsize
        for unit in model.flow(entry, producer_and_readers).redistributions:
            steps = [(unit.transfers, unit.gradient_ranks)]
            if unit.pieces is not None:
                steps = [(unit.transfers, unit.pieces.ranks if len(unit.gradient_ranks) else []),
                         (unit.gathered, unit.gradient_ranks)]
                in_two_steps += 1
            predicted += [tuple(int(elements.sum()) * itemsize for elements in (
                transfers.elements, reversed_transfers(transfers, ranks).elements)) for transfers, ranks in steps]
    joint = [operator for operator in graph.computing for collective in [collective_of(collectives(), operator)]
             if collective is not None and collective.applies(graph, operator, splits[operator.number])]
    assert len(predicted) + len(joint) == len(expected)
    for both_directions in predicted:
        expected.remove(both_directions)
    assert len(expected) == len(joint)
    return in_two_steps


@without_tables
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_weights_are_sharded_as_in_split_networks(name, data):
    planner, splits = planner_of(name), drawn_splits(planner_of(name), data)
    weights = NetworkShards(planner.graph, splits).weights
    for parameter, readers in planner.model.dataflow.readers.items():
        operators = [planner.model.operator(reader.number, splits[reader.number]) for reader in readers]
        assert planner.model.weights.shards(parameter, operators).boxes.by_rank == weights.boxes(parameter)


def test_half_of_the_heads_needs_half_the_weights():
    attention = planner_of('attention')
    joint = next(operator for operator in attention.graph.computing if operator.op == 'FullyConnected')
    splits = {**attention.splits(data_parallel()), joint.number: Split([1, 1, 2], [0, 1])}
    readers = attention.model.dataflow.readers['net_query_weight']
    operators = [attention.model.operator(reader.number, splits[reader.number]) for reader in readers]
    boxes = attention.model.weights.shards('net_query_weight', operators).boxes.by_rank
    assert boxes == {0: ((0, 4), (0, 6)), 1: ((4, 8), (0, 6))}


@pytest.mark.parametrize('plan', [data_parallel(), one_weird_trick(), grid(model=2, batch=2), grid(domain=(4,))],
                         ids=repr)
def test_followers_have_the_splits_that_plans_give_them(planner, plan):
    problem, splits = problem_of(planner), planner.splits(plan)
    assert problem.splits(problem.decisions(splits)) == splits


def test_operators_before_the_first_layer_are_planned_too():
    net = initialised(Net(lambda: [nn.Dense(16, in_units=8)], lambda F, data, dense: F.broadcast_add(
        dense((data - 1) * 0.5), F.sum(data, axis=1, keepdims=True))))
    planner = make_planner(cluster(RANKS), net, (8, 8))
    found = planner.search(None, 20)
    assert set(planner.splits(found.plan)) == {operator.number for operator in planner.graph.computing}


@pytest.mark.parametrize('plan', [data_parallel(), grid(model=2, batch=2), grid(domain=(2,), batch=2)])
def test_both_languages_agree_where_cores_slow_down(plan):
    planner = make_planner(dataclasses.replace(cluster(2, 2), hosts=SLOWED))
    splits, machine = planner.splits(plan), planner.model.machine
    blocks, python_blocks = (list(StepTasks(model, splits, 2).blocks.values())
                             for model in (planner.model, python_model_of(planner)))
    seconds = Simulation(machine.resources, groups=machine.groups).run(blocks)
    assert seconds == simulate(python_blocks, machine.resources, machine.groups)[0]
    assert seconds > Simulation(machine.resources).run(blocks)


def test_one_rank_computes_operators_one_after_the_other():
    alone = make_planner(cluster(1, 1))
    graph = alone.graph
    splits = alone.splits(data_parallel())
    computed = sum(sum(Times().shard_seconds(graph, operator, shard)) for operator in graph.computing
                   for shard in splits[operator.number].shards(graph.shape(operator)).values())
    cost = alone.cluster.costs['step']
    sizes = [int(np.prod(shape)) * 4 for name, shape in graph.parameters.items() if name not in graph.auxiliary]
    expected = computed + cost.seconds(len(sizes), 0) + cost.seconds(len(sizes), sum(sizes))
    assert alone.predict(data_parallel()).seconds == pytest.approx(expected)


@pytest.mark.parametrize('cores', [1.0, 2.0])
def test_no_rank_computes_during_a_steps_latency(cores):
    free = TransferCost(0.0, 0.0, 0.0)
    there = dataclasses.replace(cluster(1, 2, cost=free), hosts=(Host('host', 2, cores),),
                                memory=TokenBucket(1e15), memory_latency_s=0.0)
    seconds, late_seconds = (make_planner(dataclasses.replace(there, costs=dict(there.costs, step=TransferCost(
        0.004, 0.0, 0.0, latency_s)))).predict(data_parallel()).seconds for latency_s in (0.0, 0.01))
    # The end of the other rank's backward pass may still run meanwhile.
    assert late_seconds == pytest.approx(seconds + 0.01, abs=0.0005)


def test_data_parallelism_takes_as_long_as_its_sums():
    bytes_a_second = 1e3  # so slow that all other work is negligible
    planner = make_planner(cluster(RANKS, rate=bytes_a_second))
    sizes = sum(int(np.prod(shape)) * 4 for name, shape in planner.graph.parameters.items()
                if name not in planner.graph.auxiliary)
    prediction = planner.predict(data_parallel())
    assert prediction.seconds == pytest.approx(2 * sizes * (RANKS - 1) / RANKS / bytes_a_second, rel=0.05)


def test_a_split_layer_needs_a_part_of_the_memory():
    net = network()
    whole = make_planner(cluster(1, 1), net).predict(data_parallel()).largest_memory()
    split = make_planner(cluster(RANKS), net).predict(one_weird_trick()).largest_memory()
    assert split < 0.45 * whole


@pytest.mark.parametrize('states', [0, 2])
def test_untrained_weights_need_memory_but_no_gradients(states):
    """Weights that are frozen, and constants."""
    class Fixed(Net):
        def hybrid_forward(self, F, data, fixed):
            first, second = self.layers
            return second(F.broadcast_mul(first(data), fixed))

    net = Fixed(lambda: [nn.Dense(512, in_units=256, use_bias=False), nn.Dense(4, in_units=512, use_bias=False)])
    net.fixed = net.params.get_constant('fixed', np.ones((1, 512), 'float32'))
    net.initialize()
    net.layers[0].weight.grad_req = 'null'
    planner = make_planner(cluster(2), net, (BATCH, 256), states=states)
    memory = planner.predict(data_parallel()).memory_of()
    half = BATCH // 2 * 4
    assert memory == {'dense0_fwd': 512 * 256 * 4 + 512 * half, 'broadcast_mul0': 512 * 4 + 512 * half,
                      'dense1_fwd': (2 + states) * 512 * 4 * 4 + 4 * half}
    assert planner.predict(data_parallel()).largest_memory() == sum(memory.values())


def test_redistributions_within_an_operator_are_its_own(planner):
    def kinds(plan, label):
        return {task.kind for task in planner.predict(plan).tasks()
                if task.label == label and 'redistribution' in task.kind}
    joint = {'redistribution_within', 'redistribution_within_back'}
    assert kinds(data_parallel(), 'shortcut0_batchnorm0_fwd') == joint
    assert kinds(one_weird_trick(), 'shortcut0_batchnorm0_fwd') == joint
    assert kinds(data_parallel(), 'flatten0_flatten0') == set()
    assert kinds(one_weird_trick(), 'flatten0_flatten0') == {'redistribution', 'redistribution_back'}


def test_a_plan_for_another_cluster_is_refused(planner):
    other = make_planner(cluster(RANKS, rate=2e7))
    plan = other.explicit(other.splits(data_parallel()))
    with pytest.raises(InputError, match='another cluster'):
        planner.predict(plan)
    assert other.predict(plan).seconds == other.predict(data_parallel()).seconds


def test_rows_of_tables_go_to_servers_and_back():
    net = initialised(Net(
        lambda: [nn.Embedding(10000, 256, sparse_grad=True), nn.Flatten(), nn.Dense(4, in_units=2560)]))
    batch, length, rate = 8, 10, 1e4
    planner = make_planner(cluster(RANKS, rate=rate), net, (batch, length))
    prediction = planner.predict(data_parallel())
    rows = batch * length * 256 * 4
    # Each host pushes and receives its share, and each rank pulls every row that any rank has touched.
    pushed = rows / RANKS * (RANKS - 1) / RANKS
    pulled = rows * (RANKS - 1) / RANKS
    dense = 2 * (2560 * 4 + 4) * 4 * (RANKS - 1) / RANKS
    assert prediction.seconds == pytest.approx((pushed + pulled + dense) / rate, rel=0.02)
    assert {task.kind for task in prediction.tasks()} >= {'push', 'pull', 'sum', 'update'}


def test_a_small_cache_changes_no_result(planner, monkeypatch):
    problem, draw = problem_of(planner), np.random.RandomState(0)
    plans = [problem.splits(random_decisions(planner._space, draw.uniform(size=problem.operators))) for _ in range(5)]
    expected = [planner.predict(planner.explicit(splits)).seconds for splits in plans]
    other = make_planner(cluster(RANKS))
    monkeypatch.setattr(memo, 'MAX_RESULTS', 30 * RANKS)
    assert [other.predict(other.explicit(splits)).seconds for splits in plans] == expected
    assert len(other.model.memo._results) <= 30


def test_the_only_working_ranks_script_computes_beside_it():
    """The step is as long as one without a script, which runs on the core of the other rank."""
    step = TransferCost(2e-4, 0.0, 0.0)
    hosts = dataclasses.replace(cluster(1, 2), costs={**cluster(1, 2).costs, 'step': step})
    alone, both = (make_planner(hosts).predict(Layers({'*': dict(split, samples=len(split['ranks']))}))
                   for split in ({'ranks': [0]}, {'ranks': [0, 1]}))
    assert [task.where for task in alone.tasks() if task.kind == 'step'] == [1]
    assert [task.where for task in both.tasks() if task.kind == 'step'] in ([0, 1], [1, 0])
    free = dataclasses.replace(hosts, costs={**hosts.costs, 'step': TransferCost(0.0, 0.0, 0.0)})
    without_script = make_planner(free).predict(Layers({'*': {'ranks': [0], 'samples': 1}}))
    assert alone.seconds == pytest.approx(without_script.seconds, abs=1e-6)
