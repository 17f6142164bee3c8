"""The report of a plan: a table of operators, the time of a step, its bottlenecks, and the memory that it needs."""
from typing import List, Mapping, Optional

from ...base.text import aligned, seconds_text, size_text
from ...parallel.ops.graph import Graph
from ...parallel.ops.tracing import TracedNetwork
from ...parallel.plans.plan import Plan
from ...parallel.plans.stages import Stages
from ...parallel.runtime.joint_work import joint_operators, whole_outputs
from ...parallel.runtime.layout_table import layout_words, rank_words, stage_lines
from ...parallel.runtime.report_lines import line_notes, report_lines
from ...parallel.sharding.split import Split
from ..cluster.cluster_spec import Cluster
from ..task_graph.prediction import Prediction
from .bottleneck_summary import bottleneck_summary

#: The number of operators that are computed for the joint batch of which the report gives the reason.
_SHOWN = 10


def plan_report(network: TracedNetwork, cluster: Cluster, plan: Plan, splits: Mapping[int, Split],
                prediction: Prediction, stages: Optional[Stages] = None) -> str:
    """Return the whole report of a plan: the table of operators, notes on it, and the summary of the predicted step.

    With a pipeline, `network` and `splits` are those for a micro-batch.
    """
    notes = store_notes(network.graph, plan) + joint_notes(
        network, cluster, splits, prediction, stages) + whole_outputs(network.graph, network.dimensions)
    if stages is not None:
        notes = [stages.words()] + stage_lines(network.graph, splits, stages) + notes
    cautions = ['the cluster file was written by hand, not measured'] * (cluster.measured is None)
    cautions += [cluster.warning] * bool(cluster.warning)
    return '\n'.join([prediction_table(network, splits, prediction)] + notes + [''] + prediction_summary(
        network.graph, cluster, splits, prediction) + cautions)


def prediction_table(network: TracedNetwork, splits: Mapping[int, Split], prediction: Prediction) -> str:
    """Return a table with one line per operator, or norm of several operators.

    A line has the layout, the ranks, and, for the fullest rank, the seconds of computing and of moving and summing,
    forward and backward together, and the bytes of weights, gradients and outputs.
    """
    graph, seconds, memory = network.graph, prediction.seconds_of(), prediction.memory_of()
    rows = []
    for line in report_lines(graph, network.dimensions, splits):
        labels, last = [graph.label(operator) for operator in line.operators], line.operators[-1]
        computing_s, moving_s = (sum(times) for times in zip(*(seconds.get(label, (0.0, 0.0)) for label in labels)))
        rows.append([line.label, line.kind, layout_words(network.dimensions, last, splits[last.number]),
                     rank_words(splits[last.number].ranks), seconds_text(computing_s), seconds_text(moving_s),
                     size_text(sum(memory[label] for label in labels))])
    head = ['layer', 'operator', 'layout', 'ranks', 'compute', 'communicate', 'memory']
    widths = [max(len(row[column]) for row in [head] + rows) for column in range(4)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths)] + row[4:] for row in [head] + rows]
    return aligned(lines[0], lines[1:])


def joint_notes(network: TracedNetwork, cluster: Cluster, splits: Mapping[int, Split], prediction: Prediction,
                stages: Optional[Stages] = None) -> List[str]:
    """Return lines about operators that some ranks, or all, compute for the joint batch, and their cost: the operators
    that take longest, with the reason, then the number of all others.
    """
    graph, seconds = network.graph, prediction.seconds_of()
    lines = report_lines(graph, network.dimensions, splits)
    joint = line_notes(lines, joint_operators(graph, network.dimensions, splits, cluster.ranks, stages))
    times_s = [(sum(seconds.get(graph.label(operator), (0.0, 0.0))[0] for operator in line.operators), line)
               for line in lines if line.operators[-1].number in joint]
    longest_first = sorted(times_s, key=lambda timed: -timed[0])
    notes = ['%s: %s a step %s' % (line.label, seconds_text(taken_s), joint[line.operators[-1].number])
             for taken_s, line in longest_first[:_SHOWN]]
    others = longest_first[_SHOWN:]
    if others:
        notes.append('%d other operators: %s a step for the joint batch'
                     % (len(others), seconds_text(sum(taken_s for taken_s, _ in others))))
    return notes


def store_notes(graph: Graph, plan: Plan) -> List[str]:
    """Return lines about the routes of tables that a plan has or lacks."""
    return plan.store.words() + [
        '%s: the plan has no route for its rows: servers are assumed here, training measures and chooses one'
        % graph.label(graph.operators[number]) for number in plan.store.left_out(graph)]


def prediction_summary(graph: Graph, cluster: Cluster, splits: Mapping[int, Split], prediction: Prediction
                       ) -> List[str]:
    """Return lines with the time of a step, its bottlenecks, and the memory that it needs."""
    parts = {graph.label(graph.operators[number]): len(split.ranks) for number, split in splits.items()}
    lines = bottleneck_summary(prediction.critical_path(), prediction.seconds, parts, cluster.ranks,
                               prediction.layers_to_split())
    needed, available = prediction.largest_memory(), cluster.rank_memory
    lines.append('memory of a rank: at most %s' % size_text(needed))
    if available is not None and needed > available:
        lines.append('that is more than the %s that some rank has' % size_text(available))
    return lines
