r"""Communication costs by closed formulas: the cost model of Gholami et al., "Integrated Model, Batch, and Domain
Parallelism in Training Neural Networks" (SPAA 2018, arXiv 1712.04432).

P ranks form a grid of Pr x Pc.  A layer with :math:`|W|` weights reads :math:`d_{in}` numbers of each sample and writes
:math:`d_{out}`; the batch has B samples.  A message of n words takes :math:`\alpha + \beta n`; among P ranks an
allgather of n words in all takes :math:`\alpha \lceil \log_2 P \rceil + \beta n (P-1)/P`, an allreduce twice that.  A
layer may be split by

batch
    samples over all P.  Gradients of weights are summed: an allreduce of :math:`|W|` among P.
model
    outputs over Pr, samples over Pc: the 1.5D matrix product, of which Pc = 1 is pure model parallelism.
    Forward an allgather of :math:`d_{out} B / Pc` among Pr; backward an allreduce of :math:`d_{in} B / Pc` among Pr,
    except in the first layer, and an allreduce of :math:`|W| / Pr` among Pc.
domain
    rows of images over Pr, samples over Pc.  Forward and, except in the first layer, backward a message with the halo
    of a neighbour, :math:`\lfloor k/2 \rfloor` rows of :math:`B / Pc` samples, and an allreduce of :math:`|W|` among P.

Between layers that are split differently, the layout of activations changes (:func:`redistribution_time`).  A network
counts as a chain, computing is not counted, and nothing overlaps: the simulator covers all that.
"""
import dataclasses
import glob
import math
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ...base.errors import InputError
from ...parallel.plans.plan import Plan
from ...parallel.plans.strategies import Layers
from ..cluster.cluster_spec import Cluster
from .layer_sizes import LayerSizes


class AlphaBeta(NamedTuple):
    """The α-β model of the network between any two ranks: seconds per message, bytes per second, bytes of a word."""

    alpha_s: float
    bytes_per_s: float
    word_bytes: int = 4

    def message(self, words: float) -> float:
        """Return the seconds of a message from one rank to another."""
        return self.alpha_s + words * self.word_bytes / self.bytes_per_s

    def allgather(self, ranks: int, words: float) -> float:
        """Return the seconds until each of `ranks` has all `words`, of which it had its share (Bruck's algorithm)."""
        return (self.alpha_s * math.ceil(math.log2(ranks))
                + (ranks - 1) / ranks * words * self.word_bytes / self.bytes_per_s)

    def allreduce(self, ranks: int, words: float) -> float:
        """Return the seconds to sum `words` of each of `ranks`: a reduce-scatter, then an allgather."""
        return 2 * self.allgather(ranks, words)


#: The network in the examples of the paper: 2 us, 6 GB/s.
PAPER_NETWORK = AlphaBeta(2e-6, 6e9)


class ProcessGrid(NamedTuple):
    """A grid of ranks: `model` is the paper's Pr, over which outputs or rows are split, `batch` its Pc."""

    model: int
    batch: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.model * self.batch

    def __str__(self) -> str:
        return '%d x %d' % self


@dataclasses.dataclass(frozen=True)
class LayerTime:
    """The communication time of a layer in a step, in seconds."""

    #: For activations and their gradients.
    forward: float = 0.0
    backward: float = 0.0
    #: For gradients of weights.
    sums: float = 0.0
    #: There are more ranks than shards, or fewer rows than a halo has.  The formulas count no computing, so they do not
    #: contain what that costs.
    idle: bool = False

    @property
    def seconds(self) -> float:
        """The sum of all."""
        return self.forward + self.backward + self.sums


def batch_time(layer: LayerSizes, batch: int, ranks: int, network: AlphaBeta) -> LayerTime:
    """Return the time of a layer whose samples are split over all ranks: an allreduce of its weights."""
    return LayerTime(sums=network.allreduce(ranks, layer.weights), idle=ranks > batch and layer.kind != 'other')


def model_time(layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta) -> LayerTime:
    """Return the time of a layer whose outputs are split over Pr and samples over Pc: the 1.5D matrix product.

    Pc = 1 is pure model parallelism, Pr = 1 is pure batch parallelism.
    """
    samples = batch / grid.batch
    return LayerTime(network.allgather(grid.model, samples * layer.outputs),
                     0.0 if layer.first else network.allreduce(grid.model, samples * layer.inputs),
                     network.allreduce(grid.batch, layer.weights / grid.model),
                     grid.batch > batch or grid.model > layer.channels)


def domain_time(layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta) -> LayerTime:
    """Return the time of a convolution whose rows are split over Pr and samples over Pc.

    Kernels of one row have no halo.
    """
    samples, halos = batch / grid.batch, [0.0, 0.0]
    if layer.halo and grid.model > 1:
        halos = [network.message(samples * layer.halo * words / rows)
                 for words, rows in ((layer.inputs, layer.rows_in), (layer.outputs, layer.rows_out))]
    return LayerTime(halos[0], 0.0 if layer.first else halos[1], network.allreduce(grid.ranks, layer.weights),
                     grid.batch > batch or grid.model > layer.rows_out
                     or layer.rows_in // grid.model < max(1, layer.halo))


def layer_times(layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta) -> Dict[str, LayerTime]:
    """Return the times of a layer for each choice that it has."""
    times = {'batch': batch_time(layer, batch, grid.ranks, network)}
    if layer.kind != 'other':
        times['model'] = model_time(layer, batch, grid, network)
    if layer.kind == 'convolution':
        times['domain'] = domain_time(layer, batch, grid, network)
    return times


def redistribution_time(before: str, after: str, layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta
                        ) -> float:
    """Return the seconds to change the layout between two layers, forward and backward; `layer` is the second one.

    With ``model`` a rank has all activations of B / Pc samples, with ``domain`` a range of their rows, with ``batch``
    all activations of B / P samples.  To drop a part of them costs nothing.  To get more is an allgather among the Pr
    ranks, which is needed in one direction.  Between ``batch`` and ``domain`` each rank sends all of its data except
    for its own part, in both directions.
    """
    if before == after or grid.model == 1:
        return 0.0
    words = layer.inputs * batch / grid.batch
    if 'model' in (before, after):
        return network.allgather(grid.model, words)
    return 2 * network.allgather(grid.model, words / grid.model)


class AnalyticPlan(NamedTuple):
    """A plan by formulas: a grid, and by layer its choice, its time, and the seconds to change the layout before it."""

    grid: ProcessGrid
    choices: Tuple[str, ...]
    times: Tuple[LayerTime, ...]
    redistributions: Tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The communication time of a step."""
        return sum(time.seconds for time in self.times) + sum(self.redistributions)

    @property
    def idle(self) -> bool:
        """True if ranks have no work in some layer."""
        return any(time.idle for time in self.times)


def plan_on_grid(layers: Sequence[LayerSizes], batch: int, grid: ProcessGrid, network: AlphaBeta,
                 preferred: Sequence[str]) -> AnalyticPlan:
    """Return the plan in which each layer takes the first of the `preferred` choices that it has."""
    times_of_layers = [layer_times(layer, batch, grid, network) for layer in layers]
    return _with_times(layers, batch, grid, network, [next((choice for choice in preferred if choice in times), 'batch')
                                                      for times in times_of_layers])


def _with_times(layers: Sequence[LayerSizes], batch: int, grid: ProcessGrid, network: AlphaBeta,
                choices: Sequence[str]) -> AnalyticPlan:
    redistributions, before = [], ''
    for layer, choice in zip(layers, choices):
        changes = bool(before) and layer.kind != 'other'
        redistributions.append(redistribution_time(before, choice, layer, batch, grid, network) if changes else 0.0)
        before = before if layer.kind == 'other' else choice
    times = [layer_times(layer, batch, grid, network)[choice] for layer, choice in zip(layers, choices)]
    return AnalyticPlan(grid, tuple(choices), tuple(times), tuple(redistributions))


def pure_batch(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Return the plan that splits the samples over all ranks."""
    _check(layers, batch, ranks, network)
    return plan_on_grid(layers, batch, ProcessGrid(1, ranks), network, ('batch',))


def pure_model(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Return the plan that splits the outputs of every layer over all ranks."""
    _check(layers, batch, ranks, network)
    return plan_on_grid(layers, batch, ProcessGrid(ranks, 1), network, ('model',))


def pure_domain(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Return the plan that splits the rows of convolutions over all ranks, and the outputs of dense layers."""
    _check(layers, batch, ranks, network)
    return plan_on_grid(layers, batch, ProcessGrid(ranks, 1), network, ('domain', 'model'))


def grids(ranks: int) -> List[ProcessGrid]:
    """Return all grids of this number of ranks."""
    return [ProcessGrid(model, ranks // model) for model in range(1, ranks + 1) if ranks % model == 0]


def best_grid(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Return the plan by the grid on which the 1.5D products of all layers take least.

    Grids that leave ranks without work are considered only if all of them do.

    - `layers`: in the order in which they run.
    - `batch`: samples of the joint batch.

    Raises InputError if there are no layers, or a number is out of its range.
    """
    _check(layers, batch, ranks, network)
    return _least([plan_on_grid(layers, batch, grid, network, ('model',)) for grid in grids(ranks)])


def best_choices(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Return the plan that takes least of all grids and all choices of each layer, redistributions included.

    Parameters and errors are those of :func:`best_grid`.
    """
    _check(layers, batch, ranks, network)
    return _least([_best_of_grid(layers, batch, grid, network) for grid in grids(ranks)])


def _best_of_grid(layers: Sequence[LayerSizes], batch: int, grid: ProcessGrid, network: AlphaBeta) -> AnalyticPlan:
    """Return the shortest path through the choices of one layer after the other (dynamic programming)."""
    # By the choice for the last layer so far: seconds up to there, and all choices.
    paths: Dict[str, Tuple[float, Tuple[str, ...]]] = {'': (0.0, ())}
    for layer in layers:
        times = layer_times(layer, batch, grid, network)
        if layer.kind == 'other':
            paths = {before: (seconds + times['batch'].seconds, choices + ('batch',))
                     for before, (seconds, choices) in paths.items()}
            continue
        if grid.model == 1:
            times = {'batch': times['batch']}  # the others are the same
        times = {choice: time for choice, time in times.items() if not time.idle} or times
        paths = {choice: min(
            (seconds + time.seconds + (redistribution_time(before, choice, layer, batch, grid, network)
                                       if before else 0.0), choices + (choice,))
            for before, (seconds, choices) in paths.items()) for choice, time in times.items()}
    return _with_times(layers, batch, grid, network, min(paths.values())[1])


def _least(plans: Sequence[AnalyticPlan]) -> AnalyticPlan:
    return min(plans, key=lambda plan: (plan.idle, plan.seconds))


def split_plan(layers: Sequence[LayerSizes], plan: AnalyticPlan) -> Plan:
    """Return the same plan in the form that a network can be split by and a search can start from.

    Operators between the layers follow the layouts of their inputs.
    """
    model, batch = plan.grid
    by_name = {}
    # The first call's name fits all calls of a layer, and the first pattern counts.
    for layer, choice in reversed(list(zip(layers, plan.choices))):
        if layer.kind != 'other':
            by_name[glob.escape(layer.name)] = {
                'batch': {'samples': plan.grid.ranks}, 'model': {'samples': batch, 'channels': model},
                'domain': {'samples': batch, layer.cut: model}}[choice]
    return Layers(by_name, strict=False)


def fit_alpha_beta(cluster: Cluster, word_bytes: int = 4) -> AlphaBeta:
    """Return one α and one β for all ranks of a cluster.

    They are those of the link between hosts, of which each rank of the largest host has its share, or of a host's
    memory if there is only one host, together with the cost of a redistribution.
    """
    redistribution = cluster.costs['redistribution']
    if len(cluster.hosts) > 1:
        rate, latency = cluster.link.rate / max(host.ranks for host in cluster.hosts), cluster.link_latency_s
    else:
        rate, latency = cluster.memory.rate, cluster.memory_latency_s
    return AlphaBeta(latency + redistribution.latency_s + redistribution.seconds(1, 0),
                     1 / (1 / rate + redistribution.per_byte_s),
                     word_bytes)


def _check(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> None:
    if not layers:
        raise InputError('layers is empty: give the LayerSizes of a network, from mxhybrid.planner.layer_sizes')
    for name, value in (('batch', batch), ('ranks', ranks)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError('%s=%r: give a whole number of at least 1' % (name, value))
    if not network.alpha_s >= 0 or not network.bytes_per_s > 0:
        raise InputError('network: alpha=%r s, %r bytes a second: give a latency of at least 0 and a rate above 0'
                         % (network.alpha_s, network.bytes_per_s))
