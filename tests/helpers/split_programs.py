"""Plans of networks that are split without a job, and the programs of their ranks."""
from mxhybrid.parallel.ops.dimension_names import Dimensions
from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.plans.strategies import Explicit
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import ProgramSpec
from mxhybrid.parallel.sharding.split import whole_on


def labelled(graph, by_number):
    """Return values of operators by their labels."""
    return {graph.label(graph.operators[number]): value for number, value in by_number.items()}


def splits_of(network, plan, ranks):
    """Return the splits of a traced network by a plan."""
    return plan.resolve(network.graph, network.dimensions, ranks).splits


def whole_splits(graph, ranks):
    """Return splits with which each of these ranks computes every operator."""
    return {operator.number: whole_on(len(graph.shape(operator)), ranks) for operator in graph.computing}


def explicit_plan(network, splits, ranks=2, **options):
    """Return the plan of a traced network that lists these splits of all operators."""
    return Explicit(labelled(network.graph, splits), network.graph.digest(), ranks, **options)


def program_spec(graph, splits, ranks, rank=0, axes=None, gradient_inputs=()):
    """Return the specification of all ranks' programs; `axes` say where the samples of data are, if not first."""
    axes = axes or dict.fromkeys(graph.data, 0)
    shards = InputShards(graph, axes, Dimensions(graph, axes), ranks, rank, gradient_inputs)
    return ProgramSpec(NetworkShards(graph, splits), shards.inputs, shards.outputs, collectives(), gradient_inputs)
