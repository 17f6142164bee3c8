"""A sample of the chaos suite (scripts/chaos): one fault of each kind, and the reaction of the job."""
import pytest
from lab.chaos.cases import CASES, select
from lab.chaos.runner import TABLE_BODY, run_case, train_alone

#: Kinds of faults that differ in how they are noticed: a closed connection, silence of a process, of a host, an error
#: told, a child's status, a worker that is elsewhere; while large pushes are written and merged, and memory refused.
SAMPLE = ['kill/worker2/exit', 'stop/worker3/first', 'cut/link-b/mid', 'raise/worker1/saving', 'kill/server-b/mid',
          'away/worker2/mid', 'kill/server-a/pushing+40', 'memory/server-b/growing']
#: The same with dynamic tables; the job is resumed, or continues.
TABLE_SAMPLE = ['kill/server-a/delta', 'kill/keeper-a/elastic-restore']


@pytest.fixture(scope='module')
def reference():
    """Weights of one process."""
    return train_alone()


@pytest.mark.parametrize('name', SAMPLE)
def test_case(cluster, reference, name):
    (case,) = select([name])
    outcome = run_case(case, cluster, reference)
    assert not outcome.problems, '%s\n%s\n%s' % (outcome.problems, outcome.named, outcome.output)


@pytest.mark.alone
@pytest.mark.parametrize('name', TABLE_SAMPLE)
def test_case_of_tables(cluster, name):
    test_case(cluster, train_alone(TABLE_BODY), name)


def test_the_suite_covers_each_fault_at_each_moment():
    assert len(CASES) == len({case.name for case in CASES}) > 100
    hit = {(case.fault, case.target, case.moment) for case in CASES}
    for target in ('worker0', 'worker1', 'worker2', 'worker3', 'server-a', 'server-b', 'scheduler'):
        for moment in ('start', 'first', 'mid', 'saving', 'exit'):
            assert ('kill', target, moment) in hit and ('stop', target, moment) in hit
    for server in ('server-a', 'server-b'):
        for moment in ('inserting+10', 'expiring+10', 'delta'):
            assert ('kill', server, moment) in hit
    for target in ('worker0', 'worker2', 'server-a', 'server-b', 'scheduler', 'keeper-a', 'keeper-b'):
        for moment in ('elastic-start', 'elastic-step', 'elastic-commit', 'elastic-restore'):
            assert ('kill', target, moment) in hit
