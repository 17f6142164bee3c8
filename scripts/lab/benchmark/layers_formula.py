"""Prints the communication time of a network of `layers_training` by the formulas of Gholami et al.: a program,
since it needs MXNet.
"""
import json
import sys
from typing import Any, Dict

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.planner.analytic.communication_cost import (
    ProcessGrid,
    fit_alpha_beta,
    layer_times,
    pure_batch,
    redistribution_time,
)
from mxhybrid.planner.analytic.layer_sizes import layer_sizes
from mxhybrid.planner.cluster.cluster_spec import Cluster, load

from .layers_training import network


def communication(workload: str, batch: int, cluster: Cluster) -> Dict[str, Any]:
    """Seconds a step of data parallelism, and of dense layers over their outputs with everything else over samples; and
    the network that they are of.
    """
    net, sample, _ = network(workload)
    net.initialize()
    layers = layer_sizes(traced(net, [(batch,) + sample, (batch,)]).graph, batch)
    links, grid = fit_alpha_beta(cluster), ProcessGrid(cluster.ranks, 1)
    split, before = 0.0, ''
    for layer in layers:
        choice = 'model' if layer.kind == 'dense' else 'batch'
        split += layer_times(layer, batch, grid, links)[choice].seconds
        if layer.kind != 'other':
            split += redistribution_time(before, choice, layer, batch, grid, links) if before else 0.0
            before = choice
    return {'data': pure_batch(layers, batch, cluster.ranks, links).seconds, 'split': split,
            'alpha_s': links.alpha_s, 'bytes_per_s': links.bytes_per_s}


if __name__ == '__main__':
    question = json.loads(sys.argv[1])
    print(json.dumps(communication(question['workload'], question['batch'], load(question['cluster']))))
