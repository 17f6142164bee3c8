"""Fewer combinations: not each case under each launcher, where what matters of a case is the same under all."""
import pytest


def by_turns(ways, cases):
    """Parameters of a test, the way first: each case in one way, by turns; all other combinations are slow."""
    return [pytest.param(way, *(case if isinstance(case, tuple) else (case,)),
                         marks=[] if at % len(ways) == turn else pytest.mark.slow)
            for at, case in enumerate(cases) for turn, way in enumerate(ways)]


def slow(*values):
    """Parameters of a test that runs when asked for."""
    return pytest.param(*values, marks=pytest.mark.slow)
