"""A search that tries all plans of a small problem, so that its result is the optimum."""
import itertools

from mxhybrid.planner.search.mcmc import Chain, SearchLimits, SearchRecord


def try_all(problem, limits=SearchLimits()):  # noqa: B008
    """Search by trying all combinations of choices; only the `memory` of the limits counts."""
    record, plans = SearchRecord(problem, limits), itertools.product(*map(problem.candidates, range(problem.operators)))
    current = next(plans)
    first = problem.begin(current)
    record.see(first, problem.memory(), current, {})
    for plan in plans:
        seconds = problem.propose({operator: choice for operator, choice in enumerate(plan)
                                   if choice != current[operator]})
        record.see(seconds, problem.memory(), plan, {})
        problem.accept()
        record.proposals += 1
        current = plan
    return record.result([Chain('all', first, record.best, record.proposals, 'no choice')])
