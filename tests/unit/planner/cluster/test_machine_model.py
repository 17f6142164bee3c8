"""Machines: the resources of a cluster, and the speeds of its cores."""
import dataclasses

import pytest
from lab.planner.task_blocks import task_block

from mxhybrid.parallel.plans.strategies import data_parallel
from mxhybrid.planner.cluster.cluster_spec import Host
from mxhybrid.planner.cluster.machine_model import Machine
from mxhybrid.planner.planner import Planner
from mxhybrid.planner.profiling.core_benchmark import KernelTimes
from mxhybrid.planner.simulator.resource_groups import ResourceGroup, TokenBucket
from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.task_graph.task_builder import Endpoints
from tests.helpers.planned_networks import BATCH, SLOWED, Times, cluster, make_planner, network
from tests.oracles.transfer_tasks import RedistributionBuilder


def machine_of(*hosts):
    return Machine(dataclasses.replace(cluster(), hosts=hosts))


def test_a_quota_of_whole_cores_is_not_shared():
    machine = machine_of(Host('a', 2, 2.5, burst_s=0.1), Host('b', 2, 0.5, burst_s=0.1))
    assert [machine.resources[machine.core[rank]] for rank in (0, 1, 2)] == [
        TokenBucket(1.0), TokenBucket(1.0), TokenBucket(0.5, 1.0, 0.1)]
    assert Simulation(machine.resources)


def test_cores_of_a_host_slow_each_other_down():
    machine = machine_of(*SLOWED, Host('c', 2, 2.0, 0.0, 0.5), Host('d', 1, 1.0))
    assert machine.groups == [ResourceGroup((0, 1), (1.0, 0.8)), ResourceGroup((2, 3), (1.0, 0.8))]
    assert machine.speed.tolist() == [1.0] * 4 + [0.5] * 2 + [1.0]
    assert machine.shared.tolist() == [0.8] * 4 + [1.0] * 3
    # Cores by quota with a burst have their slowest speed all the time.
    assert machine_of(dataclasses.replace(SLOWED[0], cores=2.0, ranks=4, burst_s=0.1)).groups  # of whole cores
    machine = machine_of(dataclasses.replace(SLOWED[0], cores=0.5, burst_s=0.1))
    assert machine.groups == [] and machine.speed.tolist() == [0.8, 0.8]


def with_memory_speeds(*memory_speeds):
    return dataclasses.replace(cluster(), hosts=tuple(dataclasses.replace(host, memory_speeds=memory_speeds)
                                                      for host in SLOWED))


def test_memory_has_speeds_of_its_own():
    machine = Machine(with_memory_speeds(1.0, 0.5))
    assert machine.groups == [ResourceGroup(cores, (1.0, 0.8), (1.0, 0.5)) for cores in ((0, 1), (2, 3))]
    # Costs are of work that is bound by memory.
    assert machine.speed.tolist() == [1.0] * 4 and machine.shared.tolist() == [0.5] * 4


def test_arithmetic_bounds_operators_that_compute():
    planner = make_planner(with_memory_speeds(1.0, 0.5))
    splits = planner.splits(data_parallel())

    def share_of(op, model):
        numbers = [operator.number for operator in planner.graph.computing if operator.op == op]
        tasks = [model.compute(number, model.operator(number, splits[number]), False).content.tasks
                 for number in numbers]
        return max(float(task['arithmetic'].max()) for task in tasks)
    convolution, pooling = share_of('Convolution', planner.model), share_of('Pooling', planner.model)
    assert 1 >= convolution > 2 * pooling >= 0
    # The seconds of a step are between those with the speeds of arithmetic and of memory for all work.
    steps = [make_planner(with_memory_speeds(*speeds)).predict(data_parallel()).seconds for speeds in ((), (1.0, 0.5))]
    assert steps[0] < steps[1]


def test_a_core_idles_with_all_its_ranks():
    machine = machine_of(Host('a', 3, 3.0), Host('b', 2, 2.0), Host('c', 2, 1.0))

    def hosts_with_an_idle_core(*idle):
        return {int(machine.host[rank]) for rank in range(7) if machine.has_idle_core(rank, idle)}
    assert hosts_with_an_idle_core() == set()
    assert hosts_with_an_idle_core(1) == {0} and hosts_with_an_idle_core(0, 2, 4) == {0, 1}
    # Two ranks share a core.
    assert hosts_with_an_idle_core(5) == set() and hosts_with_an_idle_core(5, 6) == {2}


class TimesOfASlowCore(Times):
    """Operator times of a core on which each kernel takes two seconds."""

    def kernel_times(self):
        return KernelTimes(2.0, 2.0, 2.0)


def test_speeds_are_relative_to_the_timing_core():
    hosts_only = dataclasses.replace(cluster(), hosts=SLOWED)
    assert Machine(hosts_only, 2.0).speed.tolist() == [2.0] * 4
    assert Machine(hosts_only).speed.tolist() == [1.0] * 4
    # The kernels take one second on the reference core of the cluster: it is twice as fast.
    with_reference = dataclasses.replace(hosts_only, reference=(1.0, 1.0, 1.0))
    for spec, speed in ((with_reference, 2.0), (hosts_only, 1.0)):
        planner = Planner(network(), (BATCH, 3, 8, 8), spec, TimesOfASlowCore())
        assert planner.model.machine.speed.tolist() == [speed] * 4


def test_costs_assume_busy_cores_operator_times_one():
    machine = machine_of(*SLOWED)
    tasks = RedistributionBuilder(machine)
    ends = Endpoints.by_rank({0: tasks.compute('forward', 0, 1.0), 1: tasks.spend('step', 1, 1.0)})
    records, seconds = tasks.subgraph(ends, ends).content.tasks, {}
    for ranks in ((0,), (1,), (0, 1)):
        block = task_block(0, records['resource'][list(ranks)], records['work'][list(ranks)])
        seconds[ranks] = Simulation(machine.resources, groups=machine.groups).run([block])
    assert seconds == {(0,): pytest.approx(1.0), (1,): pytest.approx(0.8), (0, 1): pytest.approx(1.0)}
