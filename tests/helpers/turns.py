"""Pair each test case with one launcher where the case does not depend on the launcher."""
import pytest


def by_turns(ways, cases):
    """Return parameters of a test, the way first: each case in one way, in turn; all other combinations are slow."""
    return [pytest.param(way, *(case if isinstance(case, tuple) else (case,)),
                         marks=[] if at % len(ways) == turn else pytest.mark.slow)
            for at, case in enumerate(cases) for turn, way in enumerate(ways)]


def slow(*values):
    """Return parameters of a test that runs only with ``--slow``."""
    return pytest.param(*values, marks=pytest.mark.slow)
