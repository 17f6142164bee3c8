"""A search that tries all plans of a small problem, so that its result is the optimum."""
import math

from mxhybrid.base.errors import InputError
from mxhybrid.planner.search.mcmc import Chain, SearchLimits, SearchRecord

_MAX_COMBINATIONS = 1_000_000


def try_all(problem, limits=SearchLimits()):  # noqa: B008
    """Search by trying all combinations, each of which differs from the one before in one operator.

    Only the `memory` of the limits counts.
    """
    candidates = [list(problem.candidates(operator)) for operator in range(problem.operators)]
    combinations = math.prod(map(len, candidates))
    if combinations > _MAX_COMBINATIONS:
        raise InputError('problem: %d combinations are too many to try all' % combinations)
    record = SearchRecord(problem, limits)
    current = [choices[0] for choices in candidates]
    first = problem.begin(tuple(current))
    record.see(first, problem.memory(), current, {})
    for operator, choice in gray_code([len(choices) for choices in candidates]):
        changes = {operator: candidates[operator][choice]}
        record.see(problem.propose(changes), problem.memory(), current, changes)
        problem.accept()
        current[operator] = candidates[operator][choice]
        record.proposals += 1
    return record.result([Chain('all', first, record.best, record.proposals, 'no choice')])


def gray_code(counts):
    """Yield the changes, as position and digit, that lead through all numbers with this many values of each digit.

    The sequence is a reflected Gray code: each change is of one digit, by one.
    """
    digits, steps = [0] * len(counts), [1] * len(counts)
    while True:
        for position, count in enumerate(counts):
            digit = digits[position] + steps[position]
            if 0 <= digit < count:
                digits[position] = digit
                yield position, digit
                break
            steps[position] = -steps[position]
        else:
            return
