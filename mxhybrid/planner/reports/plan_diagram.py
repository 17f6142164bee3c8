"""Diagrams of a plan: operators with their layouts and ranks, and the bytes that move between them.

A diagram is an SVG file, which browsers show and which needs no library, or text for ``dot`` of graphviz.
"""
import html
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...base.errors import InputError
from ...base.files import UNWRITABLE, write_atomically
from ...base.text import seconds_text, size_text
from ...parallel.ops.dimension_names import Dimensions
from ...parallel.ops.tracing import TracedNetwork
from ...parallel.runtime.layout_table import layout_words, rank_words
from ...parallel.runtime.network_shards import NetworkShards
from ...parallel.sharding.layout import bytes_between, messages
from ...parallel.sharding.split import Split
from ...parallel.sharding.sum_steps import steps_between
from ..task_graph.prediction import Prediction

#: Width and height of a box, and the space beside and below it, in pixels.
_WIDTH, _HEIGHT, _ASIDE, _BELOW = 250, 44, 20, 40

#: Colors of layouts, in the order in which they appear; further layouts begin again with the first one.
_COLORS = ('#cfe2f3', '#d9ead3', '#fff2cc', '#f4cccc', '#d9d2e9', '#fce5cd', '#d0e0e3', '#ead1dc', '#e2e2e2', '#c9daf8')


class DiagramNode(NamedTuple):
    """An operator; `seconds` is the computing time of its slowest shard in a step, if it is known."""

    label: str
    op: str
    layout: str
    ranks: str
    seconds: Optional[float] = None


class DiagramEdge(NamedTuple):
    """A connection of two operators, by their numbers among the nodes, with the bytes that come from other ranks."""

    source: int
    target: int
    moved: int


def plan_diagram(parts: NetworkShards, dimensions: Dimensions, seconds: Optional[Mapping[str, float]] = None
                 ) -> Tuple[List[DiagramNode], List[DiagramEdge]]:
    """Return the nodes and edges of a plan's diagram.

    - `parts`: a network and the split of each operator.
    - `seconds`: computing time of the slowest shard of each operator, forward and backward, by label.
    """
    graph, times = parts.graph, seconds or {}
    node_of = {operator.number: position for position, operator in enumerate(graph.computing)}
    nodes = []
    for operator in graph.computing:
        split, label = parts.splits[operator.number], graph.label(operator)
        nodes.append(DiagramNode(label, operator.op, layout_words(dimensions, operator, split),
                                 rank_words(split.ranks), times.get(label)))
    moved: Dict[Tuple[int, int], int] = {}
    for operator in graph.computing:
        for position, (source, output) in enumerate(operator.inputs):
            if source not in node_of:
                continue  # data, or a weight
            needed = {rank: box for rank in parts.output_shards[operator.number]
                      for box in [parts.shard(operator, rank).inputs[position]] if box is not None}
            layout = parts.layout(graph.operators[source], output)
            itemsize = graph.dtypes[source, output].itemsize
            size = 0 if layout.gives(needed) else sum(bytes_between(messages(held, boxes), itemsize)
                                                      for held, boxes in steps_between(layout, needed, itemsize))
            edge = node_of[source], node_of[operator.number]
            moved[edge] = moved.get(edge, 0) + size
    return nodes, [DiagramEdge(source, target, size) for (source, target), size in moved.items()]


def check_diagram_path(path: str) -> None:
    """Raise InputError if the name of a file does not end in one of the formats of :func:`write_diagram`."""
    if not path.endswith(('.svg', '.dot', '.gv')):
        raise InputError('%s: give a name that ends in .svg, or in .dot or .gv for graphviz' % path)


def write_diagram(path: str, nodes: Sequence[DiagramNode], edges: Sequence[DiagramEdge], title: str = '') -> None:
    """Write a diagram.

    Raises InputError if `path` does not end in ``.svg``, ``.dot`` or ``.gv``, or the file cannot be written.
    """
    check_diagram_path(path)
    text = as_svg(nodes, edges, title) if path.endswith('.svg') else as_dot(nodes, edges, title)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(UNWRITABLE % (path, error)) from error


def draw_plan(path: str, network: TracedNetwork, splits: Dict[int, Split], prediction: Prediction, title: str = ''
              ) -> None:
    """Write the diagram of a plan with the time of each operator's slowest shard, as :func:`write_diagram` does."""
    seconds = {label: computing for label, (computing, _) in prediction.seconds_of().items()}
    nodes, edges = plan_diagram(NetworkShards(network.graph, splits), network.dimensions, seconds)
    write_diagram(path, nodes, edges, title)


def as_dot(nodes: Sequence[DiagramNode], edges: Sequence[DiagramEdge], title: str = '') -> str:
    """Return a diagram as text for graphviz."""
    colors = _colors(nodes)
    lines = ['digraph plan {', '  label=%s; labelloc=t;' % _quoted(title),
             '  node [shape=box, style=filled, fontname=Helvetica]; edge [fontname=Helvetica];']
    lines += ['  n%d [label=%s, fillcolor=%s];' % (number, _quoted('\n'.join(_lines(node))),
                                                   _quoted(colors[node.layout])) for number, node in enumerate(nodes)]
    lines += ['  n%d -> n%d%s;' % (edge.source, edge.target, ' [label=%s, color=red]' % _quoted(size_text(edge.moved))
                                   if edge.moved else '') for edge in edges]
    return '\n'.join(lines + ['}', ''])


def as_svg(nodes: Sequence[DiagramNode], edges: Sequence[DiagramEdge], title: str = '') -> str:
    """Return a diagram as SVG: operators are below their inputs, and edges on which bytes move are red."""
    cells = _grid_cells(len(nodes), edges)
    columns = max([column for column, _ in cells] + [0]) + 1
    rows = max([row for _, row in cells] + [0]) + 1
    width, height = max(2, columns) * (_WIDTH + _ASIDE) + _ASIDE, rows * (_HEIGHT + _BELOW) + _BELOW + 20
    corners = [(_ASIDE + column * (_WIDTH + _ASIDE), _BELOW + 20 + row * (_HEIGHT + _BELOW)) for column, row in cells]
    colors = _colors(nodes)
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="Helvetica, sans-serif" '
             'font-size="11">' % (width, height), '<rect width="100%" height="100%" fill="white"/>',
             '<text x="%d" y="24" font-size="15">%s</text>' % (_ASIDE, html.escape(title))]
    for edge in edges:
        (from_x, from_y), (to_x, to_y) = corners[edge.source], corners[edge.target]
        x, y, end_x = from_x + _WIDTH // 2, from_y + _HEIGHT, to_x + _WIDTH // 2
        # A line that passes boxes of its column goes around them; one that ends further left goes down first.
        aside = (_WIDTH // 2 + _ASIDE // 2) * (x == end_x and to_y - y > _BELOW)
        down = max(0, to_y - _BELOW - y) * (end_x < x)
        lines.append('<path d="M %d %d v %d C %d %d, %d %d, %d %d" fill="none" stroke="%s" stroke-width="%d"/>' % (
            x, y, down, x + aside, y + down + _BELOW, end_x + aside, to_y - _BELOW, end_x, to_y,
            'red' if edge.moved else 'gray', 2 if edge.moved else 1))
        if edge.moved:
            lines.append('<text x="%d" y="%d" fill="red">%s</text>' % (end_x + 4, to_y - 5, size_text(edge.moved)))
    for node, (x, y) in zip(nodes, corners):
        lines.append('<g><title>%s</title><rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s" stroke="black"/>'
                     % (html.escape('\n'.join(_lines(node))), x, y, _WIDTH, _HEIGHT, colors[node.layout]))
        for number, line in enumerate(_lines(node)):
            lines.append('<text x="%d" y="%d">%s</text>' % (x + 6, y + 17 + 17 * number, html.escape(line[:42])))
        lines.append('</g>')
    return '\n'.join(lines + ['</svg>', ''])


def _lines(node: DiagramNode) -> Tuple[str, str]:
    seconds = '' if node.seconds is None else ', ' + seconds_text(node.seconds)
    return '%s (%s)' % (node.label, node.op), '%s on %s%s' % (node.layout, node.ranks, seconds)


def _colors(nodes: Sequence[DiagramNode]) -> Dict[str, str]:
    layouts = list(dict.fromkeys(node.layout for node in nodes))
    return {layout: _COLORS[number % len(_COLORS)] for number, layout in enumerate(layouts)}


def _grid_cells(count: int, edges: Sequence[DiagramEdge]) -> List[Tuple[int, int]]:
    """Return the column and row of each node.

    A node is below all nodes that it reads, in the first free column from the leftmost column of these on.
    """
    rows, columns = [0] * count, [0] * count
    sources: List[List[int]] = [[] for _ in range(count)]
    for edge in edges:
        sources[edge.target].append(edge.source)
    taken = set()
    for node in range(count):  # sources come first
        if sources[node]:
            rows[node] = 1 + max(rows[source] for source in sources[node])
            columns[node] = min(columns[source] for source in sources[node])
        while (columns[node], rows[node]) in taken:
            columns[node] += 1
        taken.add((columns[node], rows[node]))
    return list(zip(columns, rows))


def _quoted(text: str) -> str:
    return '"%s"' % text.replace('\\', '\\\\').replace('"', '\\"').replace('\n', '\\n')
