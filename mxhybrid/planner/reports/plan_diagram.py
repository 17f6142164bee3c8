"""A plan as a picture of the network: operators with their layouts and ranks, and what moves between them.

As SVG, which browsers show and which needs no library, or as text for graphviz's ``dot``.
"""
import html
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...base.errors import InputError
from ...base.files import write_atomically
from ...base.text import seconds_text, size_text
from ...parallel.ops.dimension_names import Dimensions
from ...parallel.ops.tracing import TracedNetwork
from ...parallel.runtime.layout_table import layout_words, rank_words
from ...parallel.runtime.rank_program import Parts
from ...parallel.sharding.layout import bytes_between, messages
from ...parallel.sharding.split import Split
from ..task_graph.prediction import Prediction

#: A box in pixels, and the space between two.
_WIDTH, _HEIGHT, _ASIDE, _BELOW = 250, 44, 20, 40

#: Of layouts, in the order in which they appear; more take them again.
_COLORS = ('#cfe2f3', '#d9ead3', '#fff2cc', '#f4cccc', '#d9d2e9', '#fce5cd', '#d0e0e3', '#ead1dc', '#e2e2e2', '#c9daf8')


class DiagramNode(NamedTuple):
    """An operator: `seconds` is what its slowest part computes in a step, where that is known."""

    label: str
    op: str
    layout: str
    ranks: str
    seconds: Optional[float] = None


class DiagramEdge(NamedTuple):
    """What one operator reads of another, by their numbers among the nodes, and bytes that come from other ranks."""

    source: int
    target: int
    moved: int


def plan_diagram(parts: Parts, dimensions: Dimensions, seconds: Optional[Mapping[str, float]] = None
                 ) -> Tuple[List[DiagramNode], List[DiagramEdge]]:
    """The nodes and edges of a plan.

    Parameters
    ----------
    parts : mxhybrid.parallel.runtime.rank_program.Parts
        A network and the split of each operator.
    dimensions : mxhybrid.parallel.ops.dimension_names.Dimensions
    seconds : dict of str to float, optional
        What the slowest part of an operator computes, forward and backward, by label.
    """
    graph, times = parts.graph, seconds or {}
    numbers = {one.number: at for at, one in enumerate(graph.computing)}
    nodes = [DiagramNode(graph.label(one), one.op, layout_words(dimensions, one, parts.splits[one.number]),
                         rank_words(parts.splits[one.number].ranks), times.get(graph.label(one)))
             for one in graph.computing]
    moved: Dict[Tuple[int, int], int] = {}
    for one in graph.computing:
        for at, (source, output) in enumerate(one.inputs):
            if source not in numbers:
                continue  # data, or a weight
            wanted = {rank: box for rank in parts.places[one.number] for box in [parts.part(one, rank).inputs[at]]
                      if box is not None}
            have = parts.layout(graph.operators[source], output)
            size = 0 if have.gives(wanted) else bytes_between(messages(have, wanted),
                                                              graph.dtypes[source, output].itemsize)
            key = numbers[source], numbers[one.number]
            moved[key] = moved.get(key, 0) + size
    return nodes, [DiagramEdge(source, target, size) for (source, target), size in moved.items()]


def check_diagram_path(path: str) -> None:
    """InputError for a picture with an ending that :func:`write_diagram` does not know."""
    if not path.endswith(('.svg', '.dot', '.gv')):
        raise InputError('%s: give a name that ends in .svg, or in .dot for graphviz' % path)


def write_diagram(path: str, nodes: Sequence[DiagramNode], edges: Sequence[DiagramEdge], title: str = '') -> None:
    """Write a picture of a plan; InputError for an ending other than ``.svg``, ``.dot`` or ``.gv``, or a file that
    cannot be written.
    """
    check_diagram_path(path)
    text = as_svg(nodes, edges, title) if path.endswith('.svg') else as_dot(nodes, edges, title)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError('%s cannot be written: %s' % (path, error)) from error


def draw_plan(path: str, network: TracedNetwork, splits: Dict[int, Split], prediction: Prediction, title: str = ''
              ) -> None:
    """Write a picture of a plan, with the time that the slowest part of each operator computes; errors are those of
    :func:`write_diagram`.
    """
    seconds = {label: computing for label, (computing, _) in prediction.seconds_of().items()}
    nodes, edges = plan_diagram(Parts(network.graph, splits), network.dimensions, seconds)
    write_diagram(path, nodes, edges, title)


def as_dot(nodes: Sequence[DiagramNode], edges: Sequence[DiagramEdge], title: str = '') -> str:
    """As text for graphviz."""
    colors = _colors(nodes)
    lines = ['digraph plan {', '  label=%s; labelloc=t;' % _quoted(title),
             '  node [shape=box, style=filled, fontname=Helvetica]; edge [fontname=Helvetica];']
    lines += ['  n%d [label=%s, fillcolor=%s];' % (at, _quoted('\n'.join(_lines(node))), _quoted(colors[node.layout]))
              for at, node in enumerate(nodes)]
    lines += ['  n%d -> n%d%s;' % (edge.source, edge.target, ' [label=%s, color=red]' % _quoted(size_text(edge.moved))
                                   if edge.moved else '') for edge in edges]
    return '\n'.join(lines + ['}', ''])


def as_svg(nodes: Sequence[DiagramNode], edges: Sequence[DiagramEdge], title: str = '') -> str:
    """As SVG: what an operator reads is above it; edges on which something moves are red."""
    places = _places(len(nodes), edges)
    columns = max([x for x, _ in places] + [0]) + 1
    rows = max([y for _, y in places] + [0]) + 1
    width, height = max(2, columns) * (_WIDTH + _ASIDE) + _ASIDE, rows * (_HEIGHT + _BELOW) + _BELOW + 20
    corners = [(_ASIDE + x * (_WIDTH + _ASIDE), _BELOW + 20 + y * (_HEIGHT + _BELOW)) for x, y in places]
    colors = _colors(nodes)
    found = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="Helvetica, sans-serif" '
             'font-size="11">' % (width, height), '<rect width="100%" height="100%" fill="white"/>',
             '<text x="%d" y="24" font-size="15">%s</text>' % (_ASIDE, html.escape(title))]
    for edge in edges:
        (from_x, from_y), (to_x, to_y) = corners[edge.source], corners[edge.target]
        x, y, end_x = from_x + _WIDTH // 2, from_y + _HEIGHT, to_x + _WIDTH // 2
        # What passes by boxes of the same column goes around them; what ends further left first goes down its own.
        aside = (_WIDTH // 2 + _ASIDE // 2) * (x == end_x and to_y - y > _BELOW)
        down = max(0, to_y - _BELOW - y) * (end_x < x)
        found.append('<path d="M %d %d v %d C %d %d, %d %d, %d %d" fill="none" stroke="%s" stroke-width="%d"/>' % (
            x, y, down, x + aside, y + down + _BELOW, end_x + aside, to_y - _BELOW, end_x, to_y,
            'red' if edge.moved else 'gray', 2 if edge.moved else 1))
        if edge.moved:
            found.append('<text x="%d" y="%d" fill="red">%s</text>' % (end_x + 4, to_y - 5, size_text(edge.moved)))
    for node, (x, y) in zip(nodes, corners):
        found.append('<g><title>%s</title><rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s" stroke="black"/>'
                     % (html.escape('\n'.join(_lines(node))), x, y, _WIDTH, _HEIGHT, colors[node.layout]))
        for at, line in enumerate(_lines(node)):
            found.append('<text x="%d" y="%d">%s</text>' % (x + 6, y + 17 + 17 * at, html.escape(line[:42])))
        found.append('</g>')
    return '\n'.join(found + ['</svg>', ''])


def _lines(node: DiagramNode) -> Tuple[str, str]:
    computes = '' if node.seconds is None else ', ' + seconds_text(node.seconds)
    return '%s (%s)' % (node.label, node.op), '%s on %s%s' % (node.layout, node.ranks, computes)


def _colors(nodes: Sequence[DiagramNode]) -> Dict[str, str]:
    layouts = list(dict.fromkeys(node.layout for node in nodes))
    return {layout: _COLORS[at % len(_COLORS)] for at, layout in enumerate(layouts)}


def _places(count: int, edges: Sequence[DiagramEdge]) -> List[Tuple[int, int]]:
    """Column and row of each node: below all that it reads, in the first column that is free there from that of the
    first of these on.
    """
    rows, columns = [0] * count, [0] * count
    sources: List[List[int]] = [[] for _ in range(count)]
    for edge in edges:
        sources[edge.target].append(edge.source)
    taken = set()
    for at in range(count):  # sources come first
        if sources[at]:
            rows[at] = 1 + max(rows[source] for source in sources[at])
            columns[at] = min(columns[source] for source in sources[at])
        while (columns[at], rows[at]) in taken:
            columns[at] += 1
        taken.add((columns[at], rows[at]))
    return list(zip(columns, rows))


def _quoted(text: str) -> str:
    return '"%s"' % text.replace('\\', '\\\\').replace('"', '\\"').replace('\n', '\\n')
