"""A worker's part in training a network by a plan, and the planner's predictions for several plans."""
import json
import sys

import mxnet as mx
import numpy as np
from mxnet import gluon

import mxhybrid
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.planner.cluster.cluster_spec import load
from mxhybrid.planner.planner import Planner
from mxhybrid.planner.profiling.operator_profiler import OperatorProfiler

from .plan_cases import PLAN_CASES, shapes_of
from .split_training import SplitTraining


class PlanTrained(SplitTraining):
    """A worker that trains by a plan."""

    def start(self) -> None:
        """Join the other workers, and split the network."""
        case = PLAN_CASES[self._spec['case']]
        shapes = shapes_of(case, self._size)
        mx.random.seed(1)
        net = case.make()
        net.initialize(mx.init.Xavier())
        net = mxhybrid.parallelize(net, from_json(self._spec['plan']), shapes)
        self._store = mxhybrid.create()  # after the plan, which chooses the transport that sums dense weights
        draw = np.random.RandomState(0)
        # Indices where a network looks something up, which small whole numbers are for all of them.
        self._inputs = [mx.nd.array(draw.randint(0, 1000, shape)[net.samples], dtype='float32') for shape in shapes]
        self._net, self._batch_size = net, shapes[0][0]
        self._trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 1e-6, 'momentum': 0.9},
                                      kvstore=self._store)


def main() -> None:
    """List the plans, search for one, or predict the step times of several; argument and output are JSON."""
    spec = json.loads(sys.argv[1])
    case = PLAN_CASES[spec['case']]
    if 'ranks' in spec:
        print(json.dumps({name: plan.as_json() for name, plan in case.plans(spec['ranks']).items()}))
        return
    there = load(spec['cluster'])
    net = case.make()
    net.initialize(mx.init.Xavier())
    planner = Planner(net, shapes_of(case, there.ranks), there, OperatorProfiler(spec['profiles']), 0,
                      'float32', 1)
    if 'seconds' in spec:
        search_result = planner.search(spec['seconds'])
        print(json.dumps({'plan': search_result.plan.as_json(), 'name': search_result.name,
                          'seconds': search_result.prediction.seconds}))
        return
    print(json.dumps({name: planner.predict(from_json(plan)).seconds for name, plan in spec['plans'].items()}))


if __name__ == '__main__':
    main()
