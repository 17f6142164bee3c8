"""Transformers by plans of the planner: the plan of a search in a job, and random ones of its search space, train as
one process does.
"""
import dataclasses
import json
import re

import mxnet as mx
import numpy as np
from lab.benchmark.transformers import Bert, Gpt
from lab.jobs import run_job

from mxhybrid.planner.cluster.cluster_spec import Host, save
from mxhybrid.planner.planner import Planner
from mxhybrid.planner.search.pipeline_starts import can_be_pipelined, pipeline_starts
from mxhybrid.planner.search.plan_evaluator import PlanEvaluator, random_decisions
from mxhybrid.planner.simulator.resource_groups import TokenBucket

from ...helpers.planned_networks import Times, cluster
from . import BODIES


def plans_of(net, shapes, cluster_spec):
    """Return the plan of a search, two random ones, and a pipeline, as JSON."""
    net.initialize(mx.init.Xavier())
    planner = Planner(net, shapes, cluster_spec, Times())
    problem = PlanEvaluator(planner.model, planner._space)
    plans = {'found': planner.search(seconds=None, proposals=100).plan}
    if can_be_pipelined(planner.network):
        start = pipeline_starts(planner.model, cluster_spec.ranks, shapes[0][0])[0]
        plans['pipeline'] = planner.explicit(planner.splits(start.plan), stages=planner.stages(start.plan))
    for seed in (1, 2):
        decisions = random_decisions(planner._space, np.random.RandomState(seed).uniform(size=problem.operators))
        plans['random %d' % seed] = planner.explicit(problem.splits(decisions))
    return {name: plan.as_json() for name, plan in plans.items()}


def test_transformers_train_by_plans_of_the_planner(tmp_path):
    cluster_spec = dataclasses.replace(cluster(1, 2), hosts=(Host('here', 2, 2.0),), memory=TokenBucket(1e8))
    save(str(tmp_path / 'cluster.json'), cluster_spec)
    words, count = (4, 8), (4,)
    for name, net, shapes in (('bert', Bert(2, 16, 2, 30, 8), [words, words, count, count]),
                              ('gpt', Gpt(2, 16, 2, 30, 8), [words, words])):
        (tmp_path / ('%s.json' % name)).write_text(json.dumps(plans_of(net, shapes, cluster_spec)))
    result = run_job(BODIES / 'attention.py', 'horovodrun', workers=2, args=[str(tmp_path)], timeout=240,
                     env={'MXHYBRID_LOG_LEVEL': 'INFO', 'XDG_CACHE_HOME': str(tmp_path)}).ok()
    assert len(re.findall("plan='auto': ", result.output)) == 2
    for rank in range(2):
        for name, distances in result.results[rank]['apart'].items():
            assert set(distances) == {'found', 'pipeline', 'random 1', 'random 2', 'auto'}, name
            assert max(distances.values()) < {'bert': 1e-5, 'gpt': 1e-10}[name], (name, distances)
