"""Blocks of a step: what changes is what would be made anew, and what moves is what the wing moves."""
import dataclasses

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from mxnet.gluon import nn

from mxhybrid.parallel.ops.collective_ops import COMPOSED
from mxhybrid.parallel.plans.strategies import data_parallel, grid, one_weird_trick
from mxhybrid.parallel.runtime.input_shards import Shares
from mxhybrid.parallel.runtime.rank_program import Parts, Program
from mxhybrid.planner.cluster.cluster_spec import Host, TransferCost
from mxhybrid.planner.cluster.machine_model import Machine
from mxhybrid.planner.search.plan_evaluator import PlanEvaluator, random_decisions
from mxhybrid.planner.search.search_space import SearchSpace
from mxhybrid.planner.simulator.native_backend import native_backend
from mxhybrid.planner.simulator.resource_groups import ResourceGroup
from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.simulator.task_block import TaskBlock
from mxhybrid.planner.simulator.token_bucket import TokenBucket
from mxhybrid.planner.task_graph import memo
from mxhybrid.planner.task_graph.operator_tasks import OperatorTasks
from mxhybrid.planner.task_graph.step_tasks import StepTasks
from tests.helpers.planned_networks import BATCH, Times, check_changes, cluster, network, planner
from tests.oracles.event_loop import PYTHON_BACKEND
from tests.oracles.redistribution import reversed_transfers
from tests.oracles.transfer_tasks import ExchangeBuilder, PythonTransferTasks

RANKS = 4


class QuietNode:
    """An exchange in a graph that nobody runs."""

    def __init__(self, exchange, differentiable):
        self._exchange = exchange

    def symbol(self, token, given, plain=False):
        found = mx.sym.var('got%d' % self._exchange.number, shape=self._exchange.shapes[1])
        return token, None if self._exchange.shapes[1] is None else found

    def ending(self, made):
        return made


@pytest.fixture(scope='module')
def planned():
    return planner(cluster(RANKS))


@pytest.fixture(scope='module')
def choices(planned):
    return SearchSpace(planned.model.dataflow, RANKS, 1)


def numbers(count):
    return st.lists(st.floats(0, 1, exclude_max=True), min_size=count, max_size=count)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_changes_are_what_is_made_anew(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    decisions = [random_decisions(choices, data.draw(numbers(problem.operators))) for _ in range(4)]
    check_changes(planned, problem, decisions, data.draw(st.integers(1, 2)))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_change_is_taken_back(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    one, other, third = (problem.splits(random_decisions(choices, data.draw(numbers(problem.operators))))
                         for _ in range(3))
    blocks = StepTasks(planned.model, one, 2)
    blocks.propose(other)
    before, memory = dict(blocks.blocks), blocks.memory.copy()
    blocks.propose(third)
    blocks.rollback()
    assert blocks.blocks == before and blocks.splits == other
    np.testing.assert_array_equal(blocks.memory, memory)
    assert set(blocks.propose(third)) >= {key for key, block in StepTasks(planned.model, third, 2).blocks.items()
                                         if key not in before}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([0.2, 0.7, 0.95, 1.0, 1.2]), st.sampled_from([1e5, 1e7, 1e9]))
def test_proposals_beyond_a_limit_are_known_to_be(choices, data, share, rate):
    problem = PlanEvaluator(planner(cluster(2, RANKS // 2, rate, burst=2e3, peak=2e9)).model, choices)
    start, other = (random_decisions(choices, data.draw(numbers(problem.operators))) for _ in range(2))
    begun = problem.begin(start), problem.memory()
    changes = dict(enumerate(other))
    exact = problem.propose(changes), problem.memory()
    problem.reject()
    asked = []

    def limit(size):
        asked.append(size)
        return share * exact[0]
    found = problem.propose(changes, limit)
    assert asked == [exact[1]]
    assert found == exact[0] if share >= 1 else share * exact[0] < found <= exact[0]
    problem.reject()
    assert (problem.propose({}), problem.memory()) == begun
    problem.accept()
    assert problem.propose(changes) == exact[0]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_tasks_are_the_same_bits_in_both_languages(choices, data):
    on = cluster(2, RANKS // 2, rate=3e6, cost=TransferCost(1e-4, 1.1e-5, 1.3e-9, 7e-6))
    compiled, plain = planner(on), planner(on)
    plain.model._transfer_tasks = PythonTransferTasks(plain.model.machine)
    problem = PlanEvaluator(compiled.model, choices)
    splits = problem.splits(random_decisions(choices, data.draw(numbers(problem.operators))))
    found, expected = (StepTasks(one.model, splits, 2) for one in (compiled, plain))
    assert set(found.blocks) == set(expected.blocks)
    for key, block in found.blocks.items():
        content, other = block.content, expected.blocks[key].content
        for name in ('work', 'latency', 'order', 'resource', 'second', 'high_priority', 'inner_end'):
            np.testing.assert_array_equal(content.tasks[name], other.tasks[name])
        np.testing.assert_array_equal(content.output_tasks, other.output_tasks)
        assert successors(content) == successors(other)
        work = [of.model.load([made._built[key].subgraph]) for of, made in ((compiled, found), (plain, expected))]
        np.testing.assert_array_equal(*work)
        one, two = found.tasks(key), expected.tasks(key)
        assert [(one.kind(at), one.rank(at)) for at in range(block.size)] == [
            (two.kind(at), two.rank(at)) for at in range(block.size)]


def successors(content):
    """By task, in order."""
    return [sorted(content.successors[start:end].tolist())
            for start, end in content.tasks[['inner', 'inner_end']].tolist()]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_exchanges_are_the_wings(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    splits = problem.splits(random_decisions(choices, data.draw(numbers(problem.operators))))
    graph, model = planned.graph, planned.model
    shares = Shares(graph, planned.network.axes, planned.network.dimensions, RANKS, 0, set())
    program = Program(Parts(graph, splits), 0, shares.inputs, shares.outputs, COMPOSED[True], QuietNode, 0)
    expected = sorted(one.bytes for one in program.exchanges)
    found = []
    operators = {number: model.operator(number, split) for number, split in splits.items()}
    for entry, consumers in model.dataflow.consumers.items():
        of = [operators.get(entry[0])] + [operators.get(number) for number, _ in consumers]
        itemsize = graph.dtypes[entry].itemsize
        found += [(int(unit.transfers.elements.sum()) * itemsize,
                   int(reversed_transfers(unit.transfers, unit.gradient_ranks).elements.sum()) * itemsize)
                  for unit in model.flow(entry, of).redistributions]
    joint = [one for one in graph.computing if one.op == 'BatchNorm' and COMPOSED[True]['BatchNorm'].applies(
        graph, one, splits[one.number])]
    assert len(found) + len(joint) == len(expected)
    for one in found:
        expected.remove(one)
    assert len(expected) == len(joint)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_weights_are_held_as_the_wing_has_it(planned, choices, data):
    problem = PlanEvaluator(planned.model, choices)
    splits = problem.splits(random_decisions(choices, data.draw(numbers(problem.operators))))
    weights = Parts(planned.graph, splits).weights
    for name, readers in planned.model.dataflow.readers.items():
        operators = [planned.model.operator(reader.number, splits[reader.number]) for reader in readers]
        assert planned.model.weights.shards(name, operators).boxes.by_rank == weights.boxes(name)


@pytest.mark.parametrize('plan', [data_parallel(), one_weird_trick(), grid(model=2, batch=2), grid(domain=(4,))],
                         ids=repr)
def test_followers_do_what_plans_have_them_do(planned, choices, plan):
    problem = PlanEvaluator(planned.model, choices)
    splits = planned.splits(plan)
    followed = problem.splits(problem.decisions(splits))
    assert set(followed) == set(splits)
    assert {number for number in splits if followed[number] != splits[number]} == set()


def test_what_is_computed_before_the_first_layer_is_planned_too():
    class Net(nn.HybridSequential):
        def hybrid_forward(self, F, data):
            return F.broadcast_add(super().hybrid_forward(F, (data - 1) * 0.5), F.sum(data, axis=1, keepdims=True))

    net = Net(prefix='net_')
    net.add(nn.Dense(16, in_units=8))
    net.initialize()
    planned = planner(cluster(RANKS), net, (8, 8))
    found = planned.search(None, 20)
    assert set(planned.splits(found.plan)) == {one.number for one in planned.graph.computing}


def test_a_quota_of_whole_cores_is_no_share():
    hosts = (Host('a', 2, 2.5, burst_s=0.1), Host('b', 2, 0.5, burst_s=0.1))
    machine = Machine(dataclasses.replace(cluster(), hosts=hosts))
    assert [machine.resources[machine.core_of(rank)] for rank in (0, 1, 2)] == [
        TokenBucket(1.0), TokenBucket(1.0), TokenBucket(0.5, 1.0, 0.1)]
    assert Simulation(machine.resources)


#: Two hosts of two cores, which have four fifths of their speed while both are busy.
SLOWED = tuple(Host('host%d' % at, 2, 2.0, 0.0, 0.8, None, (1.0, 0.8)) for at in range(2))


def test_cores_of_a_host_slow_each_other_down():
    machine = Machine(dataclasses.replace(cluster(), hosts=SLOWED + (Host('c', 2, 2.0, 0.0, 0.5), Host('d', 1, 1.0))))
    assert machine.groups == [ResourceGroup((0, 1), (1.0, 0.8)), ResourceGroup((2, 3), (1.0, 0.8))]
    assert machine.speed.tolist() == [1.0] * 4 + [0.5] * 2 + [1.0]
    assert machine.shared.tolist() == [0.8] * 4 + [1.0] * 3
    # Cores by quota with a burst are slowed down all the time.
    quota = dataclasses.replace(SLOWED[0], cores=2.0, ranks=4, burst_s=0.1)
    assert Machine(dataclasses.replace(cluster(), hosts=(quota,))).groups  # whole cores are no shares
    quota = dataclasses.replace(SLOWED[0], cores=0.5, burst_s=0.1)
    machine = Machine(dataclasses.replace(cluster(), hosts=(quota,)))
    assert machine.groups == [] and machine.speed.tolist() == [0.8, 0.8]


def test_speeds_are_beside_the_reference_of_the_cluster():
    there = dataclasses.replace(cluster(), hosts=SLOWED, reference=(1.0, 1.0, 1.0))
    # Where operators were timed the pieces took twice as long: the cluster is twice as fast.
    assert Machine(there, 2.0).speed.tolist() == [2.0] * 4
    assert Machine(there).speed.tolist() == [1.0] * 4


def test_costs_are_those_of_busy_cores_and_times_of_operators_those_of_one_alone():
    machine = Machine(dataclasses.replace(cluster(), hosts=SLOWED))
    tasks = ExchangeBuilder(machine)
    tasks.compute('forward', 0, 1.0)
    tasks.spend('step', 1, 1.0)
    seconds = {}
    for ranks in ((0,), (1,), (0, 1)):
        block = TaskBlock(0, [tasks.resource[rank] for rank in ranks], [tasks.work[rank] for rank in ranks])
        seconds[ranks] = Simulation(machine.resources, groups=machine.groups).run([block])
    assert seconds == {(0,): pytest.approx(1.0), (1,): pytest.approx(0.8), (0, 1): pytest.approx(1.0)}


@pytest.mark.parametrize('plan', [data_parallel(), grid(model=2, batch=2), grid(domain=(2,), batch=2)])
def test_both_languages_have_the_same_bits_where_cores_slow_each_other_down(plan):
    planned = planner(dataclasses.replace(cluster(2, 2), hosts=SLOWED))
    splits, machine = planned.splits(plan), planned.model.machine
    plain = OperatorTasks(planned.model.dataflow, machine, planned._part_times(False),
                          transfer_tasks=PythonTransferTasks(machine))
    found = []
    for model in (planned.model, plain):
        blocks = list(StepTasks(model, splits, 2).blocks.values())
        found += [Simulation(machine.resources, backend=backend, groups=machine.groups).run(blocks)
                  for backend in (native_backend(), PYTHON_BACKEND)]
    assert len(set(found)) == 1
    assert found[0] > Simulation(machine.resources).run(StepTasks(planned.model, splits, 2).blocks.values())


def test_one_rank_computes_one_after_the_other():
    alone = planner(cluster(1, 1))
    graph = alone.graph
    splits = alone.splits(data_parallel())
    computed = sum(sum(Times().part(graph, one, place)) for one in graph.computing for place in
                   splits[one.number].places(graph.shape(one)).values())
    cost = alone.cluster.costs['step']
    sizes = [int(np.prod(shape)) * 4 for name, shape in graph.parameters.items() if name not in graph.auxiliary]
    expected = computed + cost.seconds(len(sizes), 0) + cost.seconds(len(sizes), sum(sizes))
    assert alone.predict(data_parallel()).seconds == pytest.approx(expected)


def test_data_parallelism_takes_what_its_sums_take():
    bytes_a_second = 1e3  # so that all else is nothing beside it
    planned = planner(cluster(RANKS, rate=bytes_a_second))
    sizes = sum(int(np.prod(shape)) * 4 for name, shape in planned.graph.parameters.items()
                if name not in planned.graph.auxiliary)
    found = planned.predict(data_parallel())
    assert found.seconds == pytest.approx(2 * sizes * (RANKS - 1) / RANKS / bytes_a_second, rel=0.05)


def test_a_split_layer_needs_a_part_of_the_memory():
    net = network()
    whole = planner(cluster(1, 1), net).predict(data_parallel()).largest_memory()
    split = planner(cluster(RANKS), net).predict(one_weird_trick()).largest_memory()
    assert split < 0.45 * whole


@pytest.mark.parametrize('states', [0, 2])
def test_weights_that_are_not_trained_need_memory_but_no_gradients(states):
    """Frozen ones, and constants."""
    class Net(nn.HybridSequential):
        def hybrid_forward(self, F, data, **fixed):
            first, second = self._children.values()
            return second(F.broadcast_mul(first(data), fixed['fixed']))

    net = Net(prefix='net_')
    with net.name_scope():
        net.add(nn.Dense(512, in_units=256, use_bias=False), nn.Dense(4, in_units=512, use_bias=False))
        net.fixed = net.params.get_constant('fixed', np.ones((1, 512), 'float32'))
    net.initialize()
    net._children['0'].weight.grad_req = 'null'
    planned = planner(cluster(2), net, (BATCH, 256), states=states)
    memory = planned.predict(data_parallel()).memory_of()
    half = BATCH // 2 * 4
    assert memory == {'dense0_fwd': 512 * 256 * 4 + 512 * half, 'broadcast_mul0': 512 * 4 + 512 * half,
                      'dense1_fwd': (2 + states) * 512 * 4 * 4 + 4 * half}
    assert planned.predict(data_parallel()).largest_memory() == sum(memory.values())


def test_exchanges_within_an_operator_are_told_apart_from_those_of_what_it_gives(planned):
    def kinds(plan, label):
        return {task.kind for task in planned.predict(plan).tasks() if task.label == label and 'exchange' in task.kind}
    joint = {'exchange_within', 'exchange_within_back'}
    assert kinds(data_parallel(), 'shortcut0_batchnorm0_fwd') == joint
    assert kinds(one_weird_trick(), 'shortcut0_batchnorm0_fwd') == joint
    assert kinds(data_parallel(), 'flatten0_flatten0') == set()
    assert kinds(one_weird_trick(), 'flatten0_flatten0') == {'exchange', 'exchange_back'}


def test_a_plan_for_another_cluster_is_refused(planned):
    from mxhybrid import InputError
    other = planner(cluster(RANKS, rate=2e7))
    plan = other.explicit(other.splits(data_parallel()))
    with pytest.raises(InputError, match='another cluster'):
        planned.predict(plan)
    assert other.predict(plan).seconds == other.predict(data_parallel()).seconds


def test_rows_of_tables_go_to_servers_and_back():
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Embedding(10000, 256, sparse_grad=True), nn.Flatten(), nn.Dense(4, in_units=2560))
    net.initialize()
    batch, length, rate = 8, 10, 1e4
    planned = planner(cluster(RANKS, rate=rate), net, (batch, length))
    found = planned.predict(data_parallel())
    rows = batch * length * 256 * 4
    # Each host pushes and is pushed its share, and each rank pulls every row that anyone touched.
    pushed = rows / RANKS * (RANKS - 1) / RANKS
    pulled = rows * (RANKS - 1) / RANKS
    dense = 2 * (2560 * 4 + 4) * 4 * (RANKS - 1) / RANKS
    assert found.seconds == pytest.approx((pushed + pulled + dense) / rate, rel=0.02)
    assert {task.kind for task in found.tasks()} >= {'push', 'pull', 'sum', 'update'}


def test_little_room_for_what_is_known_changes_nothing(planned, choices, monkeypatch):
    problem = PlanEvaluator(planned.model, choices)
    draw = np.random.RandomState(0)
    plans = [problem.splits(random_decisions(choices, draw.uniform(size=problem.operators))) for _ in range(5)]
    expected = [planned.predict(planned.explicit(splits)).seconds for splits in plans]
    other = planner(cluster(RANKS))
    monkeypatch.setattr(memo, 'MAX_RESULTS', 30 * RANKS)
    assert [other.predict(other.explicit(splits)).seconds for splits in plans] == expected
    assert len(other.model.memo) <= 30
