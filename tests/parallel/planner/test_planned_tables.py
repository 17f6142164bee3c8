"""Plans that choose the routes of tables: the store follows them, and weights are correct."""
import dataclasses

from lab.jobs import run_job

from mxhybrid.planner.cluster.cluster_spec import Host, save

from ...helpers.planned_networks import cluster
from . import BODIES

TABLE = 'embedding0_weight'


def test_rows_travel_as_the_plan_says(tmp_path):
    result = run_job(BODIES / 'planned_tables.py', workers=2, servers=2, args=[str(tmp_path)], timeout=200,
                     env={'MXHYBRID_LOG_LEVEL': 'INFO'}).ok()
    assert sorted(result.results) == [0, 1]
    outcomes = result.results[0]['outcomes']
    assert result.results[1]['outcomes'] == outcomes
    assert max(outcome['worst'] for outcome in outcomes.values()) < 1e-10
    assert {name: outcome['route'] for name, outcome in outcomes.items()} == {
        **dict.fromkeys(outcomes, 'server gradients'), 'allreduce': 'row allreduce'}
    # A table that is left out is named, and goes as without a plan.  The user's setting takes precedence.
    for name, count in (('servers', 3), ('left out', 2), ('overruled', 1), ('overruled in part', 4)):
        assert outcomes[name]['partitions'] == count, name
    for name, words in (('servers', 'rows by servers, 3 partitions'), ('allreduce', 'rows by allreduce'),
                        ('left out', 'the plan does not name this table')):
        assert '%s: %s' % (TABLE, words) in outcomes[name]['layout_table']
    for words in ('by allreduce, but the setting routes says servers, which has precedence',
                  'into 3 partitions, but the setting partitions says 4, which has precedence'):
        assert words in result.output
    not_a_table, no_partitions = result.results[0]['errors']
    assert ('dense0_weight is not a table of the network: give parameters with row_sparse gradients, of which it has '
            + TABLE) in not_a_table
    assert 'partitions=0: give a whole number of at least 1' in no_partitions


def test_a_plan_that_is_searched_for(tmp_path):
    # One sum of so few rows is predicted to take less than a push and a pull; which one it is, the trial says.
    save(str(tmp_path / 'cluster.json'), dataclasses.replace(cluster(1, 2), hosts=(Host('here', 2, 2.0),)))
    result = run_job(BODIES / 'planned_tables.py', workers=2, args=[str(tmp_path), 'auto'], timeout=200,
                     env={'MXHYBRID_LOG_LEVEL': 'INFO', 'XDG_CACHE_HOME': str(tmp_path)}).ok()
    for rank in range(2):
        outcome = result.results[rank]['outcomes']['auto']
        assert outcome['layout_table'] == result.results[0]['outcomes']['auto']['layout_table']
        assert outcome['worst'] < 1e-5 and outcome['route'] in ('row allreduce', 'server gradients')
    assert "plan='auto': a step takes " in result.output
