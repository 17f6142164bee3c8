"""Excerpts of the output of a job in messages."""
from lab.jobs import indented


def test_the_last_lines_are_shown():
    assert indented('') == '  (it said nothing)'
    assert indented('first\nsecond\nthird\n', 2) == '  | second\n  | third'


def test_the_beginning_of_a_crash_is_shown():
    crash = ['[0]<stderr>:Fatal Python error: Segmentation fault', '', '[0]<stderr>:Current thread'] + ['frame'] * 60
    shown = indented('\n'.join(['before'] + crash + ['after', 'end']), 2).split('\n')
    assert shown[:3] == ['  | ' + line for line in crash[:3]]
    assert shown[-3:] == ['  | ...', '  | after', '  | end'] and len(shown) == 33
    short = indented('\n'.join(['before'] + crash), 62).split('\n')
    assert short[:2] == ['  | ' + crash[0], '  | ...'] and len(short) == 64
