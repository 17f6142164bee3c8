"""Groups of operators that are the same in repeated blocks."""
from hypothesis import given, strategies as st

from mxhybrid.planner.search.search_space import repeated_groups


def groups(text):
    """Return the groups of more than one position."""
    return [group for group in repeated_groups(text) if len(group) > 1]


def test_layers_are_repeated_as_a_whole():
    # Three projections and the output of attention are the same layer, but at different places of a block.
    assert groups('e' + 'ddddfg' * 3 + 'h') == [[1 + place, 7 + place, 13 + place] for place in range(6)]


def test_blocks_of_several_kinds_are_groups_of_their_own():
    assert groups('s' + 'abab' + 'p' + 'cdcdcd') == [[1, 3], [2, 4], [6, 8, 10], [7, 9, 11]]
    assert groups('aaaa') == [[0, 1, 2, 3]]
    assert not groups('abcde') and not groups('a') and not groups('')


def test_an_incomplete_block_stays_by_itself():
    assert groups('abcabcab') == [[0, 3], [1, 4], [2, 5]]
    assert groups('bcabcabc') == [[0, 3], [1, 4], [2, 5]]


@given(st.text('ab', max_size=20))
def test_each_position_is_in_one_group_of_equal_keys(text):
    found = repeated_groups(text)
    assert sorted(position for group in found for position in group) == list(range(len(text)))
    assert all(len({text[position] for position in group}) == 1 for group in found) and found == sorted(found)


def test_hundreds_of_layers_take_little_time():
    found = repeated_groups('e' + 'ddddfg' * 100 + 'h')
    assert len(found) == 8 and {len(group) for group in found} == {1, 100}
