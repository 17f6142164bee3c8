"""A network whose operators are split over all workers: what :func:`mxhybrid.parallelize` makes of one."""
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..base.errors import InputError
from ..base.log import get_logger
from ..job.join import join
from ..kvstore.parts import agreed
from ..native import trainers
from .boxes import shape_of
from .composed import COMPOSED
from .dimensions import Dimensions
from .graph import Graph
from .held import Held, hold
from .model_files import ModelFiles
from .plan import Explicit, Plan, as_plan, save
from .program import TOKEN, Parts, Program
from .report import layout_table
from .shares import Shares
from .team import Team, team_of

logger = get_logger(__name__)

#: Numbers that exchanges of one network may have; those of its inference and of its weights begin in the middle.
_NUMBERS = 1 << 20


class Parallel(gluon.Block):
    """A network of which this worker computes its parts.  Made by :func:`parallelize`.

    Its forward takes this worker's samples, and returns this worker's samples, as without a plan: those of
    :attr:`samples` in the joint batch.  All workers call it, in training as for inference.  It is trained by a
    ``gluon.Trainer`` with ``kvstore='hybrid'``; :meth:`collect_params` gives every parameter, under its name, with the
    values that this worker holds of it, or a placeholder of shape (1,) where that is none.
    """

    def __init__(self, team: Team, network: 'SplitNetwork', held: Held, files: ModelFiles, first: int):
        super().__init__(prefix='', params=None)
        self._team, self._network, self._held, self._files = team, network, held, files
        self._graph, self._parts, self._shares = network.graph, network.parts, network.shares
        composed = 'BatchNorm' in network.composed and any(one.op == 'BatchNorm' for one in self._graph.computing)
        self._programs = {training: self._program(training, first + _NUMBERS // 4 * (not training))
                          for training in ([True, False] if composed else [True])}
        self._calls: Dict[bool, Any] = {}
        self._token = mx.nd.zeros(1)
        self._token.attach_grad()
        self.params.update(_as_dict(held.params))

    def _program(self, training: bool, first: int) -> Program:
        frozen = {name for name, param in self._held.params.items() if agreed(param)[0] == 'null'}
        composed = self._network.composed if training else COMPOSED[False]
        return Program(self._parts, self._team.rank, self._shares.inputs, self._shares.outputs, composed,
                       self._team.node, first, self._shares.flows, frozen)

    @property
    def samples(self) -> slice:
        """Which samples of the joint batch this worker gives and gets.  Where there are fewer of them than workers,
        several have the same one; then one of them gives the gradient.
        """
        return self._shares.samples

    @property
    def exchanges(self) -> int:
        """How many exchanges there are in a step of training, on all workers together."""
        return len(self._programs[True].exchanges)

    def forward(self, *args: Any) -> Any:
        """This worker's samples of the network's outputs (on all workers).

        Raises
        ------
        InputError
            Another number of inputs, or shapes, than :func:`parallelize` was told.
        """
        self._check(args)
        training = bool(autograd.is_training()) if len(self._programs) > 1 else True
        program = self._programs[training]
        if training not in self._calls:
            inputs = program.symbol.list_inputs()
            self._calls[training] = inputs, mx.nd.CachedOp(program.symbol, [('static_alloc', True)])
        inputs, call = self._calls[training]
        given = dict(zip(self._network.names, args))
        given[TOKEN] = self._token
        params = self._held.params
        found = call(*[given[name] if name in given else params[name].data() for name in inputs])
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        with autograd.pause():
            for at, (name, momentum) in enumerate(program.statistics, program.outputs):
                average = params[name].data()
                average *= float(momentum)
                average += float(1 - momentum) * found[at].astype(average.dtype)
        return self._network.regroup(found[:program.outputs])

    def _check(self, args: Sequence[Any]) -> None:
        if len(args) != len(self._network.names):
            raise InputError('a parallelized network: %d inputs, but it was made for %d'
                             % (len(args), len(self._network.names)))
        for name, array in zip(self._network.names, args):
            wanted = shape_of(self._shares.box(name))
            if tuple(array.shape) != wanted:
                raise InputError("a parallelized network: worker %d gives %s of shape %s, but its samples, "
                                 "batch[net.samples], have shape %s; a joint batch of another size needs a network of "
                                 'its own' % (self._team.rank, name, tuple(array.shape), wanted))

    def save_plan(self, path: str) -> None:
        """Write how every operator is split, with digests of network and world, to a JSON file that
        :func:`parallelize` takes as a plan.
        """
        save(path, Explicit({self._graph.label(one): self._parts.splits[one.number] for one in self._graph.computing},
                            self._graph.digest(), self._team.size))

    def report(self) -> str:
        """A table of all operators: how they are split, on which workers, what that takes and moves."""
        network = self._network
        return layout_table(network.plan.name, network.graph, network.dimensions, network.parts,
                          self._programs[True].exchanges, self._team.size, network.notes)

    __repr__ = report

    # -- whole models ----------------------------------------------------------------------------------------------

    def save_parameters(self, filename: Any, deduplicate: bool = False) -> None:
        """Write what ``save_parameters`` of the network writes: whole weights, by their places in it (collective: all
        workers call it, worker 0 writes).

        Parameters
        ----------
        filename : str or path
            On worker 0's host.
        deduplicate : bool, optional
            Whether a weight that several layers share is written once only.

        Raises
        ------
        CheckpointError
            On all workers, when worker 0 cannot write; a file of that name is as it was then.
        """
        self._files.save(filename, deduplicate)

    def load_parameters(self, filename: Any, ctx: Any = None, allow_missing: bool = False, ignore_extra: bool = False,
                        cast_dtype: bool = False, dtype_source: str = 'current') -> None:
        """Read what ``save_parameters`` of the network has written, split by any plan or not at all (collective: all
        workers call it, worker 0 reads).

        Parameters
        ----------
        filename : str or path
            On worker 0's host.
        ctx, allow_missing, ignore_extra, cast_dtype, dtype_source
            As for ``load_parameters`` of gluon; types of weights that are split stay.

        Raises
        ------
        InputError
            On all workers: the file lacks a parameter, has one more, or one of another shape or type; nothing was
            changed then.  It is an AssertionError and a ValueError, too, which gluon raises.
        CheckpointError
            On all workers, when worker 0 cannot read.
        """
        self._files.load(filename, ctx, allow_missing, ignore_extra, cast_dtype, dtype_source)

    def export(self, path: Any, epoch: int = 0, remove_amp_cast: bool = True) -> None:
        """Write the network for ``gluon.SymbolBlock.imports``, as ``export`` of the network does (collective: all
        workers call it, worker 0 writes).

        Parameters
        ----------
        path : str or path
            On worker 0's host; ``-symbol.json`` and ``-0000.params`` come behind it.
        epoch : int, optional
            The number in the second name.
        remove_amp_cast : bool, optional
            Whether casts of AMP are left out.

        Raises
        ------
        CheckpointError
            On all workers, when worker 0 cannot write.
        """
        self._files.export(path, epoch, remove_amp_cast)

    def _collect_params_with_prefix(self, prefix: str = '') -> Dict[str, Any]:
        """As of the network, also where that is part of another Block."""
        return {'%s.%s' % (prefix, place) if prefix else place: self._held.params[name]
                for place, name in self._files.places.items()}

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """It is compiled anyway."""


def parallelize(net: Any, plan: Any, data: Any, batch_axis: Any = 0, dtype: Any = 'float32', input_grad: bool = False,
                batch_norm: str = 'joint') -> Parallel:
    """Split a network over all workers of the job.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialised.  Nothing in it changes, but weights that are split leave it; worker 0's values count.
    plan : plan, dict or str
        One of :mod:`mxhybrid.parallel`, a dict as for :func:`mxhybrid.parallel.layers`, or the name of a JSON file.
    data : tuple of int, or list of them
        Shape of the joint batch of all workers, of each input.
    batch_axis : int or list of int, optional
        Which dimension of the inputs has the samples; None for an input that has none, which all workers give whole.
    dtype : dtype or list of them, optional
        Of the inputs.
    input_grad : bool, optional
        Whether gradients go back to inputs, as where these are computed.
    batch_norm : str, optional
        ``'joint'``: statistics are those of the joint batch, as in one process.  ``'local'``: each worker's are those
        of its own samples, and so are its running averages, as in data parallelism without a plan; where nothing but
        samples and channels is split.

    Returns
    -------
    Parallel
        A Block in the network's place.

    Raises
    ------
    InputError
        A network that is no HybridBlock or was not initialised, shapes that it does not take, a plan that it cannot
        follow, or another one on some worker; on all workers.
    """
    job, _ = join({})
    team = team_of(job)
    problem = ''
    try:
        made = _prepare(net, as_plan(plan), data, batch_axis, dtype, input_grad, batch_norm, team)
    except InputError as error:
        problem = str(error)
        team.agree('', problem)
        raise
    seed = team.agree([made.graph.digest(), made.plan.as_json(), batch_norm], problem)
    first = team.reserve(_NUMBERS)
    drawn = any(trainers.awaits_shape(param) for param in net.collect_params().values())
    held = hold(net, made.parts, team, first + _NUMBERS // 2)
    if any(one.op in ('Dropout', 'RNN') for one in made.graph.computing):
        mx.random.seed((seed + team.rank) % 2 ** 31)  # or all parts would drop the same
    elif drawn:
        mx.random.seed(seed)  # or worker 0, which has drawn initial values, would draw other ones than the others
    places = {place: param.name for place, param in trainers.params_by_place(net).items()}
    found = Parallel(team, made, held, ModelFiles(team, held, places, made.symbol, net.prefix), first)
    if team.rank == 0:
        logger.info('%s', found.report())
    return found


class SplitNetwork(NamedTuple):
    """A network and how it is split."""

    symbol: Any
    graph: Graph
    plan: Plan
    dimensions: Dimensions
    parts: Parts
    #: What is otherwise than the plan wanted.
    notes: Dict[int, str]
    #: Of inputs, in their order.
    names: List[str]
    shares: Shares
    #: Puts a list of outputs into the form that the network gives them.
    regroup: Callable[[List[Any]], Any]
    #: What builds operators that are several in training, see :mod:`mxhybrid.parallel.composed`.
    composed: Dict[str, Any]


def _prepare(net: Any, plan: Plan, data: Any, batch_axis: Any, dtype: Any, input_grad: bool, batch_norm: str,
             team: Team) -> SplitNetwork:
    if batch_norm not in ('joint', 'local'):
        raise InputError("parallelize: batch_norm=%r: give 'joint' or 'local'" % (batch_norm,))
    if not isinstance(net, gluon.HybridBlock):
        raise InputError('parallelize: the network is a %s, not a HybridBlock: split the part of it that is one, and '
                         'keep its tables outside' % type(net).__name__)
    shapes = [tuple(data)] if all(isinstance(one, (int, np.integer)) for one in data) else [tuple(one) for one in data]
    names = ['data'] if len(shapes) == 1 else ['data%d' % at for at in range(len(shapes))]
    axes = dict(zip(names, _each(batch_axis, len(shapes), 'batch_axis')))
    types = dict(zip(names, _each(dtype, len(shapes), 'dtype')))
    for name, shape in zip(names, shapes):
        axis = axes[name]
        if axis is not None and not 0 <= axis < len(shape):
            raise InputError('parallelize: batch_axis=%r, but data has shape %s' % (axis, shape))
        if any(not isinstance(count, (int, np.integer)) or count < 1 for count in shape):
            raise InputError('parallelize: data=%s: give a whole shape, that of the joint batch' % (shape,))
    params = net.collect_params()
    missing = [name for name, param in params.items()
               if not trainers.has_values(param) and not trainers.awaits_shape(param)]
    if missing:
        raise InputError('parallelize: %s has no values: call initialize() first' % missing[0])
    found = net(*[mx.sym.var(name) for name in names])
    outputs, regroup = _flatten(found)
    symbol = mx.sym.Group(outputs)
    used = set(symbol.list_inputs())
    unused = [name for name in names if name not in used]
    if unused:
        raise InputError('parallelize: the network does not use its input %s: leave it out' % unused[0])
    graph = Graph(symbol, dict(zip(names, shapes)),
                  {**{name: param.dtype for name, param in params.items() if name in used}, **types}, net.prefix)
    dimensions = Dimensions(graph, axes)
    settled = plan.settle(graph, dimensions, team.size)
    parts = Parts(graph, settled.splits)
    composed = dict(COMPOSED[True])
    if batch_norm == 'local':
        del composed['BatchNorm']
        _check_local(graph, dimensions, parts)
    flows = set(names) if input_grad else set()
    shares = Shares(graph, axes, dimensions, team.size, team.rank, flows)
    return SplitNetwork(symbol, graph, plan, dimensions, parts, settled.notes, names, shares, regroup, composed)


def _check_local(graph: Graph, dimensions: Dimensions, parts: Parts) -> None:
    """InputError where statistics of samples alone would not be those of whole samples."""
    for one in graph.computing:
        if one.op == 'BatchNorm':
            for name, degree in zip(dimensions.names(one), parts.splits[one.number].degrees):
                if degree > 1 and name not in ('samples', 'channels'):
                    raise InputError("parallelize: batch_norm='local', but %s is split over %s: take 'joint', or "
                                     'another plan' % (graph.label(one), name))


def _each(value: Any, count: int, what: str) -> List[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InputError('parallelize: %s=%r for %d inputs: give one each' % (what, value, count))
    return list(value)


def _flatten(found: Any) -> Tuple[List[Any], Any]:
    """Outputs of a network in one list, and what puts such a list into their form."""
    if not isinstance(found, (list, tuple)):
        return [found], lambda values: values[0]
    pieces = [_flatten(one) for one in found]

    def regroup(values: List[Any]) -> Any:
        at, made = 0, []
        for symbols, inner in pieces:
            made.append(inner(values[at:at + len(symbols)]))
            at += len(symbols)
        return type(found)(made)
    return [symbol for symbols, _ in pieces for symbol in symbols], regroup


def _as_dict(params: Dict[str, Any]) -> Any:
    """Parameters as a ParameterDict, which a Block has."""
    found = gluon.ParameterDict()
    found.update(params)
    return found
