r"""What communication takes by closed formulas: the cost model of Gholami et al., "Integrated Model, Batch, and Domain
Parallelism in Training Neural Networks" (SPAA 2018, arXiv 1712.04432), as what has to move in each of its layouts.

P ranks form a grid of Pr x Pc.  A layer with :math:`|W|` weights takes :math:`d_{in}` and gives :math:`d_{out}` numbers
a sample, of B samples.  A message of n words takes :math:`\alpha + \beta n`; among P ranks an allgather of n words in
all takes :math:`\alpha \lceil \log_2 P \rceil + \beta n (P-1)/P`, an allreduce twice that.  A layer may be split by

batch
    samples over all P.  Gradients of weights are summed: an allreduce of :math:`|W|` among P.
model
    outputs over Pr, samples over Pc: their product in 1.5 dimensions, of which pure model parallelism is Pc = 1.
    Forward an allgather of :math:`d_{out} B / Pc` among Pr, backward an allreduce of :math:`d_{in} B / Pc` among Pr,
    but for the first layer, and an allreduce of :math:`|W| / Pr` among Pc.
domain
    rows of images over Pr, samples over Pc.  Forward and, but for the first layer, backward a message with the halo of
    a neighbour, :math:`\lfloor k/2 \rfloor` rows of :math:`B / Pc` samples, and an allreduce of :math:`|W|` among P.

Beside that stands what the layout of activations changes between layers that are split otherwise
(:func:`redistribution_time`).  A network is taken for a chain, computing is not counted, and nothing overlaps: the
simulator is for all that.
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


@dataclasses.dataclass(frozen=True)
class CommunicationTime:
    """Seconds by their cause: starts of messages, and words."""

    latency_s: float = 0.0
    bandwidth_s: float = 0.0

    def __add__(self, other: 'CommunicationTime') -> 'CommunicationTime':
        return CommunicationTime(self.latency_s + other.latency_s, self.bandwidth_s + other.bandwidth_s)

    @property
    def seconds(self) -> float:
        """In all."""
        return self.latency_s + self.bandwidth_s


NOTHING = CommunicationTime()


class AlphaBeta(NamedTuple):
    """A network between any two ranks: seconds a message, bytes a second, and bytes of a number."""

    alpha_s: float
    bytes_per_s: float
    word_bytes: int = 4

    def message(self, words: float) -> CommunicationTime:
        """From one rank to another."""
        return CommunicationTime(self.alpha_s, words * self.word_bytes / self.bytes_per_s)

    def allgather(self, ranks: int, words: float) -> CommunicationTime:
        """Each of `ranks` gets all of so many words, of which it has its share (Bruck's algorithm)."""
        if ranks == 1:
            return NOTHING
        return CommunicationTime(self.alpha_s * math.ceil(math.log2(ranks)),
                                 (ranks - 1) / ranks * words * self.word_bytes / self.bytes_per_s)

    def allreduce(self, ranks: int, words: float) -> CommunicationTime:
        """Each of `ranks` has so many words and gets their sums: scattered, then gathered."""
        half = self.allgather(ranks, words)
        return half + half


#: The network of the paper's examples: 2 us, 6 GB/s.
PAPER_NETWORK = AlphaBeta(2e-6, 6e9)


class ProcessGrid(NamedTuple):
    """Ranks of a grid: `model` is the paper's Pr, over which outputs or rows are split, `batch` its Pc."""

    model: int
    batch: int

    @property
    def ranks(self) -> int:
        """In all."""
        return self.model * self.batch

    def __str__(self) -> str:
        return '%d x %d' % self


@dataclasses.dataclass(frozen=True)
class LayerTime:
    """What communication of a layer takes in a step.

    Attributes
    ----------
    forward, backward : CommunicationTime
        Of activations and their gradients.
    sums : CommunicationTime
        Of gradients of weights.
    idle : bool
        Whether there are more ranks than parts, or rows fewer than a halo has: formulas count no computing, so that
        they say nothing of what that costs.
    """

    forward: CommunicationTime = NOTHING
    backward: CommunicationTime = NOTHING
    sums: CommunicationTime = NOTHING
    idle: bool = False

    @property
    def seconds(self) -> float:
        """In all."""
        return (self.forward + self.backward + self.sums).seconds


def batch_time(layer: LayerSizes, batch: int, ranks: int, network: AlphaBeta) -> LayerTime:
    """Of a layer whose samples are split over all ranks: an allreduce of its weights."""
    return LayerTime(sums=network.allreduce(ranks, layer.weights), idle=ranks > batch and layer.kind != 'other')


def model_time(layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta) -> LayerTime:
    """Of a layer whose outputs are split over Pr and samples over Pc: the product in 1.5 dimensions; pure model
    parallelism with Pc = 1, pure batch parallelism with Pr = 1.
    """
    samples = batch / grid.batch
    return LayerTime(network.allgather(grid.model, samples * layer.outputs),
                     NOTHING if layer.first else network.allreduce(grid.model, samples * layer.inputs),
                     network.allreduce(grid.batch, layer.weights / grid.model),
                     grid.batch > batch or grid.model > layer.channels)


def domain_time(layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta) -> LayerTime:
    """Of a convolution whose rows are split over Pr and samples over Pc; kernels of one row have no halo."""
    samples, halos = batch / grid.batch, [NOTHING, NOTHING]
    if layer.halo and grid.model > 1:
        halos = [network.message(samples * layer.halo * words / rows)
                 for words, rows in ((layer.inputs, layer.rows_in), (layer.outputs, layer.rows_out))]
    return LayerTime(halos[0], NOTHING if layer.first else halos[1], network.allreduce(grid.ranks, layer.weights),
                     grid.batch > batch or grid.model > layer.rows_out
                     or layer.rows_in // grid.model < max(1, layer.halo))


def layer_times(layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta) -> Dict[str, LayerTime]:
    """What a layer takes by each choice that it has."""
    found = {'batch': batch_time(layer, batch, grid.ranks, network)}
    if layer.kind != 'other':
        found['model'] = model_time(layer, batch, grid, network)
    if layer.kind == 'convolution':
        found['domain'] = domain_time(layer, batch, grid, network)
    return found


def redistribution_time(before: str, after: str, layer: LayerSizes, batch: int, grid: ProcessGrid, network: AlphaBeta
                        ) -> CommunicationTime:
    """What changes of layout take between two layers, once forward and once backward; `layer` is the second.

    With ``model`` a rank has all activations of B / Pc samples, with ``domain`` a range of rows of these, with
    ``batch`` all activations of B / P samples.  What it has more than it needs costs nothing to leave away; to have
    more is an allgather among the Pr ranks, which happens in one direction; between ``batch`` and ``domain`` each rank
    gives all but its own part of what it has, in both directions.
    """
    if before == after or grid.model == 1:
        return NOTHING
    words = layer.inputs * batch / grid.batch
    if 'model' in (before, after):
        return network.allgather(grid.model, words)
    one_way = network.allgather(grid.model, words / grid.model)
    return one_way + one_way


class AnalyticPlan(NamedTuple):
    """A grid, and for each layer how it is split, what that takes, and what the change of layout before it takes."""

    grid: ProcessGrid
    choices: Tuple[str, ...]
    times: Tuple[LayerTime, ...]
    switches: Tuple[CommunicationTime, ...]

    @property
    def seconds(self) -> float:
        """Of communication in a step."""
        return sum(one.seconds for one in self.times) + sum(one.seconds for one in self.switches)

    @property
    def idle(self) -> bool:
        """Whether ranks are without work in any layer."""
        return any(one.idle for one in self.times)


def plan_on_grid(layers: Sequence[LayerSizes], batch: int, grid: ProcessGrid, network: AlphaBeta, wanted: Sequence[str]
                 ) -> AnalyticPlan:
    """All layers by one grid, each by the first of the `wanted` choices that it has."""
    there = [layer_times(layer, batch, grid, network) for layer in layers]
    return _laid_out(layers, batch, grid, network,
                     [next((one for one in wanted if one in times), 'batch') for times in there])


def _laid_out(layers: Sequence[LayerSizes], batch: int, grid: ProcessGrid, network: AlphaBeta, choices: Sequence[str]
              ) -> AnalyticPlan:
    switches, before = [], ''
    for layer, choice in zip(layers, choices):
        changes = bool(before) and layer.kind != 'other'
        switches.append(redistribution_time(before, choice, layer, batch, grid, network) if changes else NOTHING)
        before = before if layer.kind == 'other' else choice
    times = [layer_times(layer, batch, grid, network)[choice] for layer, choice in zip(layers, choices)]
    return AnalyticPlan(grid, tuple(choices), tuple(times), tuple(switches))


def pure_batch(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Samples over all ranks."""
    _check(layers, batch, ranks, network)
    return plan_on_grid(layers, batch, ProcessGrid(1, ranks), network, ('batch',))


def pure_model(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Outputs of every layer over all ranks."""
    _check(layers, batch, ranks, network)
    return plan_on_grid(layers, batch, ProcessGrid(ranks, 1), network, ('model',))


def pure_domain(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Rows of every convolution over all ranks, and outputs of dense layers, which have no rows."""
    _check(layers, batch, ranks, network)
    return plan_on_grid(layers, batch, ProcessGrid(ranks, 1), network, ('domain', 'model'))


def grids(ranks: int) -> List[ProcessGrid]:
    """All of so many ranks."""
    return [ProcessGrid(model, ranks // model) for model in range(1, ranks + 1) if ranks % model == 0]


def best_grid(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Of all grids the one by which the product in 1.5 dimensions of all layers takes least.

    Grids that leave ranks without work count only where all do.

    Parameters
    ----------
    layers : sequence of LayerSizes
        In the order in which they run.
    batch : int
        Samples of the joint batch.
    ranks : int
    network : AlphaBeta

    Raises
    ------
    InputError
        No layers, or a number that is none.
    """
    _check(layers, batch, ranks, network)
    return _least([plan_on_grid(layers, batch, grid, network, ('model',)) for grid in grids(ranks)])


def best_choices(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> AnalyticPlan:
    """Of all grids, and for each layer of batch, model and domain, what takes least together, changes of layout
    included.  Parameters and errors are those of :func:`best_grid`.
    """
    _check(layers, batch, ranks, network)
    return _least([_best_of_grid(layers, batch, grid, network) for grid in grids(ranks)])


def _best_of_grid(layers: Sequence[LayerSizes], batch: int, grid: ProcessGrid, network: AlphaBeta) -> AnalyticPlan:
    """The shortest way through the choices of one layer after the other."""
    # By the choice of the layer before: seconds up to there, and all choices.
    ways: Dict[str, Tuple[float, Tuple[str, ...]]] = {'': (0.0, ())}
    for layer in layers:
        there = layer_times(layer, batch, grid, network)
        if layer.kind == 'other':
            ways = {before: (seconds + there['batch'].seconds, way + ('batch',))
                    for before, (seconds, way) in ways.items()}
            continue
        if grid.model == 1:
            there = {'batch': there['batch']}  # the others are the same
        there = {choice: time for choice, time in there.items() if not time.idle} or there
        ways = {choice: min(
            (seconds + time.seconds + (redistribution_time(before, choice, layer, batch, grid, network).seconds
                                       if before else 0.0), way + (choice,))
            for before, (seconds, way) in ways.items()) for choice, time in there.items()}
    return _laid_out(layers, batch, grid, network, min(ways.values())[1])


def _least(plans: Sequence[AnalyticPlan]) -> AnalyticPlan:
    return min(plans, key=lambda plan: (plan.idle, plan.seconds))


def split_plan(layers: Sequence[LayerSizes], plan: AnalyticPlan) -> Plan:
    """The same as a plan that a network can be split by, and a search can start from: operators between layers follow
    what they read.
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


def alpha_beta_of(cluster: Cluster, word_bytes: int = 4) -> AlphaBeta:
    """One network for all ranks of a cluster, as formulas want it: the link between hosts, of which each rank of the
    largest host has its share, or a host's memory where there is one host only, with what an exchange takes.
    """
    exchange = cluster.costs['exchange']
    if len(cluster.hosts) > 1:
        rate, latency = cluster.link.rate / max(host.ranks for host in cluster.hosts), cluster.link_latency_s
    else:
        rate, latency = cluster.memory.rate, cluster.memory_latency_s
    return AlphaBeta(latency + exchange.latency_s + exchange.seconds(1, 0), 1 / (1 / rate + exchange.per_byte_s),
                     word_bytes)


def _check(layers: Sequence[LayerSizes], batch: int, ranks: int, network: AlphaBeta) -> None:
    if not layers:
        raise InputError('formula: no layers: give at least one')
    for what, value in (('batch', batch), ('ranks', ranks)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError('formula: %s=%r: give a whole number of at least 1' % (what, value))
    if not network.alpha_s >= 0 or not network.bytes_per_s > 0:
        raise InputError('formula: alpha=%r s and %r bytes a second: give at least 0, and more than 0'
                         % (network.alpha_s, network.bytes_per_s))
