"""No two redistributions of a network have the same number, however many calls wait for their backward passes."""

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.runtime.parallel_block import another_program


class Made:
    """A program of some redistributions; `made` lists the numbers of each one."""

    def __init__(self, redistributions):
        self.redistributions = range(redistributions)


@pytest.mark.parametrize('redistributions', [1, 7, 300])
def test_programs_share_no_number(redistributions):
    programs, first, taken = {True: Made(redistributions), False: Made(redistributions - 1)}, 3 << 20, []

    def make(training, number):
        taken.append(set(range(number, number + len(programs[training].redistributions))))
    for count in range(1, 50):
        for training in (True, False):
            another_program(make, programs, first, training, count)
    assert sum(map(len, taken)) == len(set().union(*taken))
    # The first programs begin with an eighth of the numbers each, and weights have the second half.
    assert min(set().union(*taken)) >= first + (1 << 18) and max(set().union(*taken)) < first + (1 << 19)


def test_numbers_depend_on_the_network_and_the_call_alone():
    numbers = []
    for _ in range(2):
        another_program(lambda training, number: numbers.append(number), {True: Made(3)}, 5, True, 2)
    assert numbers[0] == numbers[1]


def test_too_many_calls_are_refused():
    with pytest.raises(InputError, match='run backward before more calls'):
        another_program(lambda training, number: None, {True: Made(300)}, 0, True, 1 << 10)
