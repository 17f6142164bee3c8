"""Plans that choose the routes of tables: the store follows them, and weights are correct."""
import dataclasses

from lab.jobs import run_job

from mxhybrid.planner.cluster.cluster_spec import Host, save

from ...helpers.planned_networks import cluster
from . import BODIES

TABLE = 'embedding0_weight'


def trained(tmp_path):
    result = run_job(BODIES / 'planned_tables.py', workers=2, servers=2, args=[str(tmp_path)], timeout=200,
                     env={'MXHYBRID_LOG_LEVEL': 'INFO'}).ok()
    assert sorted(result.results) == [0, 1]
    for rank in range(2):
        outcomes = result.results[rank]['outcomes']
        assert max(one['worst'] for one in outcomes.values()) < 1e-10
        assert outcomes['servers']['route'] == 'server gradients' and outcomes['servers']['partitions'] == 3
        assert outcomes['allreduce']['route'] == 'row allreduce'
    return result


def test_rows_travel_as_the_plan_says(tmp_path):
    result = trained(tmp_path)
    worker_0, worker_1 = (result.results[rank] for rank in range(2))
    assert worker_0['outcomes'] == worker_1['outcomes']
    outcomes = worker_0['outcomes']
    assert '%s: rows by servers, 3 partitions' % TABLE in outcomes['servers']['layout_table']
    assert '%s: rows by allreduce' % TABLE in outcomes['allreduce']['layout_table']
    # A table that is left out is named, and goes as without a plan.
    assert '%s: the plan does not name this table' % TABLE in outcomes['left out']['layout_table']
    assert (outcomes['left out']['route'], outcomes['left out']['partitions']) == ('server gradients', 2)
    # The user's setting takes precedence.
    assert (outcomes['overruled']['route'], outcomes['overruled']['partitions']) == ('server gradients', 1)
    assert 'by allreduce, but the setting routes says servers, which has precedence' in result.output
    assert outcomes['overruled in part']['partitions'] == 4
    assert 'into 3 partitions, but the setting partitions says 4, which has precedence' in result.output
    for error, message in zip(worker_0['errors'], ['dense0_weight is not a table of the network: give parameters with '
                                                   'row_sparse gradients, of which it has ' + TABLE,
                                                   'partitions=0: give a whole number of at least 1']):
        assert message in error


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
