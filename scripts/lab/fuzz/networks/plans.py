"""Draws plans: data parallelism, grids, Megatron, pipelines, the one weird trick, patterns of layers, and splits of
single operators; and layers that are computed again in the backward pass.
"""
import contextlib
import random as randoms
from typing import Any, Dict, List

import numpy as np

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.recompute import recomputed_segments

from . import pieces
from .alone import class_of
from .network import Program
from .script import spec_of


def graph_of(program: Program) -> Any:
    """Return the traced network; raise InputError if mxhybrid refuses it."""
    spec = spec_of(program)
    inputs = spec['inputs']
    net = pieces.prepared(class_of(program), spec)
    return traced(net, [tuple(each['shape']) for each in inputs], [each['axis'] for each in inputs],
                  [each['dtype'] for each in inputs])


def factors(random: randoms.Random, count: int, pieces_of: int) -> List[int]:
    """Draw `pieces_of` factors whose product is `count`."""
    product = [1] * pieces_of
    for prime in (2, 3):
        while count % prime == 0:
            count //= prime
            product[random.randrange(pieces_of)] *= prime
    return product


def draw_plan(program: Program, random: randoms.Random) -> Dict[str, Any]:
    """Draw a plan for a network, with which some layers may be computed again in the backward pass."""
    plan = _splitting_plan(program, random)
    recomputed = _recomputed(program, random) if random.random() < 0.3 else []
    return {**plan, 'recompute': recomputed} if recomputed else plan


def _splitting_plan(program: Program, random: randoms.Random) -> Dict[str, Any]:
    """Draw a plan that says how operators are split."""
    workers, data_parallel = program['workers'], {'kind': 'data_parallel'}
    chances = {'data_parallel': 4, 'one_weird_trick': 2, 'grid': 2, 'domain': 2, 'sequence': 2, 'megatron': 2,
               'pipeline': 5, 'layers': 3, 'splits': 7}
    kind = random.choices(list(chances), list(chances.values()))[0]
    if kind == 'grid':
        model, batch = factors(random, workers, 2)
        return {'kind': 'grid', 'model': model, 'batch': batch}
    if kind == 'domain':
        model, batch, *domain = factors(random, workers, random.choice((3, 4)))
        return {'kind': 'grid', 'model': model, 'batch': batch, 'domain': domain}
    if kind == 'sequence':
        model, batch, sequence = factors(random, workers, 3)
        return {'kind': 'grid', 'model': model, 'batch': batch, 'sequence': sequence}
    if kind in ('megatron', 'pipeline'):
        plan = _megatron(workers, random) if kind == 'megatron' else _pipeline(workers, random)
        return plan if _fits(plan, program) else data_parallel
    if kind in ('layers', 'splits'):
        try:
            network = graph_of(program)
        except InputError:
            return data_parallel
        drawn = _layers(network, random, workers) if kind == 'layers' else _splits(network.graph, random, workers)
        return {'kind': kind, 'by_pattern' if kind == 'layers' else 'splits': drawn} if drawn else data_parallel
    return {'kind': kind}


def _fits(plan: Dict[str, Any], program: Program) -> bool:
    """Return whether a network has the layers that a plan splits."""
    if plan['kind'] == 'pipeline' and (program['input_grad'] or program['calls'] > 1):
        return False
    with contextlib.suppress(InputError):
        network = graph_of(program)
        pieces.plan_of(plan).resolve(network.graph, network.dimensions, program['workers'])
        return True
    return False


def _recomputed(program: Program, random: randoms.Random) -> List[str]:
    """Draw the names of some layers; none if mxhybrid refuses to compute them again."""
    names = [layer['name'] for layer in program['layers']]
    if not names:
        return []
    patterns = sorted(random.sample(names, random.randint(1, len(names))))
    with contextlib.suppress(InputError):
        network = graph_of(program)
        recomputed_segments(network.graph, network.blocks, patterns, {},
                            set(network.axes) if program['input_grad'] else set(), True)
        return patterns
    return []


def _megatron(workers: int, random: randoms.Random) -> Dict[str, Any]:
    model, batch = factors(random, workers, 2)
    return {'kind': 'megatron', 'model': model, 'batch': batch, 'sequence': random.random() < 0.5}


def _pipeline(workers: int, random: randoms.Random) -> Dict[str, Any]:
    """Draw a pipeline of one micro-batch, which equals any network; its stages are data parallel, or grids."""
    stages = random.randint(2, workers)
    plan: Dict[str, Any] = {'kind': 'pipeline', 'stages': stages, 'micro_batches': 1, 'schedule': 'gpipe'}
    if workers == 2 * stages and random.random() < 0.5:
        plan['inside'] = {'kind': 'grid', 'model': 2}
    return plan


def _degrees(random: randoms.Random, limits: List[int], left: int) -> List[int]:
    degrees = [1] * len(limits)
    for dimension in random.sample(range(len(limits)), len(limits)):
        degrees[dimension] = random.randint(1, max(1, min(left, limits[dimension])))
        left //= degrees[dimension]
    return degrees


def _layers(network: Any, random: randoms.Random, workers: int) -> Dict[str, Any]:
    """Draw degrees of some operators by names of dimensions, and their ranks."""
    splits: Dict[str, Any] = {}
    for operator in network.graph.computing:
        if random.random() < 0.5:
            continue
        names = network.dimensions.names(operator)
        degrees = _degrees(random, rule_of(operator).limits(network.graph, operator), workers)
        wish: Dict[str, Any] = {name: degree for name, degree in zip(names, degrees) if degree > 1}
        count = int(np.prod(degrees))
        if len(set(names)) < len(names):
            wish, count = {}, 1
        partials = random.randint(1, max(1, min(workers // count, rule_of(operator).partials(network.graph, operator))))
        if partials > 1:
            wish['partials'] = partials
            count *= partials
        if random.random() < 0.6:
            wish['ranks'] = random.sample(range(workers), count)
        splits[network.graph.label(operator).replace('[', '[[]')] = wish
    return splits


def _splits(graph: Any, random: randoms.Random, workers: int) -> Dict[str, Any]:
    """Draw any splits of some operators, or of all, with copies."""
    splits: Dict[str, Any] = {}
    share = random.choice((0.5, 1.0, 1.0))
    for operator in graph.computing:
        if random.random() >= share:
            continue
        rule, copies, partials = rule_of(operator), 1, 1
        most = min(workers, rule.partials(graph, operator))
        if most > 1 and random.random() < 0.5:
            partials = random.randint(2, most)
        degrees = _degrees(random, rule.limits(graph, operator), workers // partials)
        count = partials * int(np.prod(degrees))
        if partials == 1 and not rule.not_replicable and workers // count > 1:
            copies = random.randint(1, workers // count)
            count *= copies
        if graph.has_table(operator) and count < workers:
            continue
        splits[graph.label(operator)] = [degrees, random.sample(range(workers), count), partials, copies]
    return splits

