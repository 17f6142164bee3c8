"""Tables and a picture of the cost model."""

import pytest

from mxhybrid import InputError
from mxhybrid.planner.analytic.communication_cost import PAPER_NETWORK
from mxhybrid.planner.analytic.cost_table import cost_rows, cost_table, draw_costs, layer_cost_table
from mxhybrid.planner.analytic.layer_sizes import ALEXNET


def test_cost_against_ranks():
    lines = cost_table(ALEXNET, 2048, [1, 8, 512], PAPER_NETWORK).splitlines()
    assert lines[0] == ('communication in a step by the formulas of Gholami et al. (2018): batch of 2048, 2 us, '
                        '6.0 GB/s, 62378344 weights')
    assert lines[1].split('  ')[0] == 'ranks' and lines[-1].startswith('* some ranks have no work')
    one, eight, many = [line.split() for line in lines[3:6]]
    assert (one[0], one[-1]) == ('1', '1.00') and '1 x 1' in lines[3]
    assert eight[0] == '8' and eight[1:3] == ['72.9', 'ms'] and '4 x 2' in lines[4] and '*' not in lines[4]
    assert many[0] == '512' and '1.61 s*' in lines[5] and float(many[-1]) > float(eight[-1]) > 1
    assert len({len(line) for line in lines[1:6]}) == 1


def test_layer_by_layer():
    lines = layer_cost_table(ALEXNET, 2048, 64, PAPER_NETWORK).splitlines()
    assert lines[0].startswith('layers on 64 ranks as a grid of 8 x 8: ')
    rows = {line.split()[0]: line.split() for line in lines[3:11]}
    assert list(rows) == [layer.name for layer in ALEXNET]
    assert 'batch' in rows['conv3'] and 'model' in rows['fc6'] and '-' in rows['fc6']


def test_rows():
    few, many = cost_rows(ALEXNET, 2048, (1, 4), PAPER_NETWORK)
    assert (few.ranks, few.gain, few.batch.seconds) == (1, 1.0, 0)
    assert many.gain == many.batch.seconds / many.choices.seconds > 1
    with pytest.raises(InputError, match='ranks=0'):
        cost_rows(ALEXNET, 2048, (4, 0), PAPER_NETWORK)


@pytest.mark.parametrize('ranks', [(1, 2, 4), (8, 16, 32)])
def test_picture(ranks, tmp_path):
    rows, picture = cost_rows(ALEXNET, 2048, ranks, PAPER_NETWORK), tmp_path / 'formula.png'
    draw_costs(rows, str(picture))
    assert picture.read_bytes().startswith(b'\x89PNG')
    with pytest.raises(InputError, match='cannot be written'):
        draw_costs(rows, str(tmp_path / 'none' / 'formula.png'))
