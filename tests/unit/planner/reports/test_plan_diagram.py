"""A plan as a picture of its network."""
import os
import xml.etree.ElementTree

import mxnet as mx
import pytest

from mxhybrid import InputError, parallel
from mxhybrid.parallel.ops.dimension_names import Dimensions
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.planner.reports.plan_diagram import DiagramEdge, DiagramNode, as_dot, as_svg, plan_diagram, write_diagram

SVG = '{http://www.w3.org/2000/svg}'


@pytest.fixture
def network():
    """A graph, its dimensions and splits by plan, of two branches on 4 ranks with a batch of 8."""
    data = mx.sym.var('data')
    conv = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=4, name='conv')
    left = mx.sym.relu(conv, name='left')
    both = mx.sym.elemwise_add(left, conv, name='both')
    flat = mx.sym.Flatten(both, name='flat')
    graph = Graph(mx.sym.FullyConnected(flat, num_hidden=16, name='fc'), {'data': (8, 2, 6, 6)}, {'data': 'float32'})
    dimensions = Dimensions(graph, {'data': 0})

    def settled(plan):
        return NetworkShards(graph, plan.resolve(graph, dimensions, 4).splits), dimensions
    return settled


def test_moved_bytes_stand_at_their_edge(network):
    nodes, edges = plan_diagram(*network(parallel.one_weird_trick()), {'conv': 0.002})
    assert nodes == [DiagramNode('conv', 'Convolution', 'samples 4', '0-3', 0.002),
                     DiagramNode('left', 'relu', 'samples 4', '0-3'),
                     DiagramNode('both', 'elemwise_add', 'samples 4', '0-3'),
                     DiagramNode('flat', 'Flatten', 'samples 4', '0-3'),
                     DiagramNode('fc', 'FullyConnected', 'channels 4', '0-3')]
    # Each rank gets the samples of the three others.
    assert sorted(edges) == [(0, 1, 0), (0, 2, 0), (1, 2, 0), (2, 3, 0), (3, 4, 4 * 3 * 2 * 4 * 36 * 4)]
    _, edges = plan_diagram(*network(parallel.data_parallel()))
    assert not any(edge.moved for edge in edges)


def test_changes_of_layout_move(network):
    """Each rank has two of its four samples of half the height already."""
    plan = parallel.by_name({'left': {'height': 2, 'samples': 2}, 'conv': {'samples': 4}})
    nodes, edges = plan_diagram(*network(plan))
    assert (nodes[1].layout, nodes[1].ranks) == ('samples 2 x height 2', '0-3')
    assert [edge.moved for edge in edges if (edge.source, edge.target) == (0, 1)] == [4 * 2 * 4 * 3 * 6 * 4]


def test_svg(network, tmp_path):
    path = tmp_path / 'plan.svg'
    nodes, edges = plan_diagram(*network(parallel.one_weird_trick()), {'fc': 0.002})
    write_diagram(str(path), nodes, edges, 'a <plan> & more')
    root = xml.etree.ElementTree.parse(str(path)).getroot()
    texts = [one.text for one in root.iter(SVG + 'text')]
    assert texts[0] == 'a <plan> & more' and '13.8 kB' in texts
    assert 'fc (FullyConnected)' in texts and 'channels 4 on 0-3, 2 ms' in texts
    boxes = [group.find(SVG + 'rect') for group in root.iter(SVG + 'g')]
    places = [(int(box.get('x')), int(box.get('y'))) for box in boxes]
    assert len(set(places)) == 5 and [y for _, y in places] == sorted(y for _, y in places)
    assert max(x + int(box.get('width')) for (x, _), box in zip(places, boxes)) < int(root.get('width'))
    assert max(y + int(box.get('height')) for (_, y), box in zip(places, boxes)) < int(root.get('height'))
    strokes = [line.get('stroke') for line in root.iter(SVG + 'path')]
    assert sorted(strokes) == ['gray'] * 4 + ['red']
    assert len({box.get('fill') for box in boxes}) == 2


def test_side_by_side_where_rows_are_the_same():
    nodes = [DiagramNode(str(at), 'op', 'whole', '0') for at in range(4)]
    edges = [DiagramEdge(0, 1, 0), DiagramEdge(0, 2, 0), DiagramEdge(1, 3, 0), DiagramEdge(2, 3, 7)]
    root = xml.etree.ElementTree.fromstring(as_svg(nodes, edges))
    places = [(box.get('x'), box.get('y')) for box in (group.find(SVG + 'rect') for group in root.iter(SVG + 'g'))]
    assert len(set(places)) == 4 and places[1][1] == places[2][1] and places[0][0] == places[1][0] == places[3][0]


def test_dot():
    text = as_dot([DiagramNode('a "b"\\', 'op', 'whole', '0', 0.5), DiagramNode('c', 'op', 'samples 2', '0-1')],
                  [DiagramEdge(0, 1, 2000)], 'name')
    assert text.splitlines()[0] == 'digraph plan {' and text.rstrip().endswith('}')
    assert 'n0 [label="a \\"b\\"\\\\ (op)\\nwhole on 0, 500 ms", fillcolor="#cfe2f3"];' in text
    assert 'n0 -> n1 [label="2.0 kB", color=red];' in text


def test_files(tmp_path):
    nodes = [DiagramNode('a', 'op', 'whole', '0')]
    for name in ('plan.dot', 'plan.gv'):
        write_diagram(str(tmp_path / name), nodes, [])
        assert (tmp_path / name).read_text() == as_dot(nodes, [])
    with pytest.raises(InputError, match='plan.png: give a name that ends in .svg'):
        write_diagram(str(tmp_path / 'plan.png'), nodes, [])
    with pytest.raises(InputError, match='cannot be written'):
        write_diagram(str(tmp_path / 'none' / 'plan.svg'), nodes, [])
    assert sorted(os.listdir(str(tmp_path))) == ['plan.dot', 'plan.gv']
