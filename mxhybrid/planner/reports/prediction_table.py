"""A predicted step in words: a table of operators, how long a step takes, and what it waits for."""
from typing import List, Mapping

from ...base.text import aligned, seconds_text, size_text
from ...parallel.ops.graph import Graph
from ...parallel.ops.tracing import TracedNetwork
from ...parallel.plans.plan import Plan
from ...parallel.runtime.layout_table import layout_words, note_lines, rank_words
from ...parallel.sharding.split import Split
from ..cluster.cluster_spec import Cluster
from ..task_graph.prediction import Prediction
from .bottleneck_summary import bottleneck_summary


def plan_report(network: TracedNetwork, cluster: Cluster, plan: Plan, splits: Mapping[int, Split],
                prediction: Prediction) -> str:
    """Return all that is said of a plan: the table of operators, notes below it, and the step that is predicted."""
    notes = store_notes(network.graph, cluster, plan) + note_lines(network.graph, network.dimensions, splits,
                                                                   cluster.ranks, {})
    by_hand = ['the cluster file was written by hand, not measured'] * (cluster.measured is None)
    return '\n'.join([prediction_table(network, splits, prediction)] + notes + [''] + prediction_summary(
        network.graph, cluster, splits, prediction) + by_hand)


def prediction_table(network: TracedNetwork, splits: Mapping[int, Split], prediction: Prediction) -> str:
    """One line an operator: how it is split, on which ranks, what of its parts takes on the fullest rank, forward and
    backward together: computing, moving and summing, and bytes of weights, gradients and outputs.
    """
    graph, seconds, memory = network.graph, prediction.seconds_of(), prediction.memory_of()
    rows = []
    for one in graph.computing:
        split, label = splits[one.number], graph.label(one)
        computing, moving = seconds.get(label, (0.0, 0.0))
        rows.append([label, one.op, layout_words(network.dimensions, one, split),
                     rank_words(split.ranks), seconds_text(computing), seconds_text(moving), size_text(memory[label])])
    head = ['layer', 'operator', 'layout', 'ranks', 'computes', 'moves', 'memory']
    widths = [max(len(row[column]) for row in [head] + rows) for column in range(4)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths)] + row[4:] for row in [head] + rows]
    return aligned(lines[0], lines[1:])


def store_notes(graph: Graph, cluster: Cluster, plan: Plan) -> List[str]:
    """What a plan says of tables and sums, and of which tables it says nothing."""
    dense = plan.store.dense
    unknown = ['dense weights: the cluster file says of one way alone what sums take, which is taken for %s' % dense
               ] * (dense is not None and not cluster.sums)
    return plan.store.words() + unknown + [
        '%s: nothing is said of its rows, which are taken to go by servers; training measures their route'
        % graph.label(graph.operators[number]) for number in plan.store.left_out(graph)]


def prediction_summary(graph: Graph, cluster: Cluster, splits: Mapping[int, Split], prediction: Prediction
                       ) -> List[str]:
    """How long a step takes, how much memory, and what it waits for."""
    parts = {graph.label(graph.operators[number]): len(split.ranks) for number, split in splits.items()}
    words = bottleneck_summary(prediction.critical_path(), prediction.seconds, parts, cluster.ranks,
                               prediction.layers_to_split())
    most, there = prediction.largest_memory(), cluster.rank_memory
    words.append('at most %s on a rank' % size_text(most))
    if there is not None and most > there:
        words.append('that is more than the %s that a rank has of its host, where that is least' % size_text(there))
    return words
