"""A network whose operators are split over all workers: what :func:`mxhybrid.parallelize` makes of one."""
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import TablePlan, variable
from ..job.join import member
from ..kvstore.parts import agreed
from ..kvstore.planned import set_planned
from ..native import trainers
from .boxes import shape_of
from .composed import COMPOSED
from .dimensions import Dimensions
from .graph import Graph
from .held import Held, hold
from .model_files import ModelFiles
from .plan import Plan
from .plan_files import as_plan, save
from .plan_kinds import Explicit
from .program import COMPILED, TOKEN, Parts, Program
from .report import layout_table
from .shares import Shares
from .team import Team, team_of
from .traced import traced

logger = get_logger(__name__)

#: Numbers that exchanges of one network may have; those of its inference and of its weights begin in the middle.
_NUMBERS = 1 << 20


class Parallel(gluon.Block):
    """A network of which this worker computes its parts.  Made by :func:`mxhybrid.parallelize`.

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
        self._token = mx.nd.zeros(1, ctx=mx.cpu())
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
    def given(self) -> List[Tuple[Tuple[int, ...], Any]]:
        """Shape and type of what this worker gives, of each input."""
        graph = self._graph
        types = {one.name: graph.dtypes[one.number, 0] for one in graph.operators if one.name in graph.data}
        return [(shape_of(self._shares.box(name)), types[name]) for name in self._network.names]

    @property
    def exchanges(self) -> int:
        """How many exchanges there are in a step of training, on all workers together."""
        return len(self._programs[True].exchanges)

    def forward(self, *args: Any) -> Any:
        """This worker's samples of the network's outputs (on all workers).

        Raises
        ------
        InputError
            Another number of inputs, or shapes, than :func:`mxhybrid.parallelize` was told.
        """
        self._check(args)
        training = bool(autograd.is_training()) if len(self._programs) > 1 else True
        program = self._programs[training]
        if training not in self._calls:
            inputs = program.symbol.list_inputs()
            constants = {name: mx.nd.array(values, ctx=mx.cpu(), dtype=values.dtype)
                         for name, values in program.constants.items()}
            fixed = [at for at, name in enumerate(inputs) if name in constants or name in self._held.params]
            others = [at for at in range(len(inputs)) if at not in fixed]
            self._calls[training] = inputs, constants, mx.nd.CachedOp(
                program.symbol, COMPILED + [('data_indices', others), ('param_indices', fixed)])
        inputs, constants, call = self._calls[training]
        given = {**constants, **dict(zip(self._network.names, args))}
        given[TOKEN] = self._token
        params = self._held.params
        found = call(*[given[name] if name in given else params[name].data() for name in inputs])
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        with autograd.pause():
            program.average(found, lambda name: params[name].data())
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
        :func:`mxhybrid.parallelize` takes as a plan.
        """
        save(path, Explicit({self._graph.label(one): self._parts.splits[one.number] for one in self._graph.computing},
                            self._graph.digest(), self._team.size, store=self._network.plan.store))

    def report(self) -> str:
        """A table of all operators: how they are split, on which workers, what that takes and moves."""
        network = self._network
        return '\n'.join([layout_table(network.plan.name, network.graph, network.dimensions, network.parts,
                                       self._programs[True].exchanges, self._team.size, network.notes)]
                         + network.plan.store.words())

    __repr__ = report

    def forget(self) -> None:
        """It is not called any more, on any worker: exchanges let go of their memory."""
        for program in self._programs.values():
            program.forget()
        self._calls.clear()

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


def split_network(net: Any, plan: Any, data: Any, batch_axis: Any, dtype: Any, input_grad: bool, batch_norm: str,
                  tell: bool = True) -> Parallel:
    """What :func:`mxhybrid.parallelize` does with a plan that is given; parameters and errors are those.  Worker 0 is
    to `tell` how it is split.
    """
    problem = ''
    try:
        given: Optional[Plan] = as_plan(plan)
    except InputError as error:
        given, problem = None, str(error)
    dense = None if given is None else given.store.dense
    job = member({'dense': dense})
    team = team_of(job)
    try:
        if given is None:
            raise InputError(problem)
        made = _prepare(net, given, data, batch_axis, dtype, input_grad, batch_norm, team)
    except InputError as error:
        problem = str(error)
        team.agree('', problem)
        raise
    seed = team.agree([made.graph.digest(), made.plan.as_json(), batch_norm], problem)
    first = team.reserve(_NUMBERS)
    drawn = any(trainers.awaits_shape(param) for param in net.collect_params().values())
    held = hold(net, made.parts, team, first + _NUMBERS // 2)
    for name, table in made.tables.items():
        set_planned(held.params[name], table)
    if any(one.op in ('Dropout', 'RNN') for one in made.graph.computing):
        mx.random.seed((seed + team.rank) % 2 ** 31)  # or all parts would drop the same
    elif drawn:
        mx.random.seed(seed)  # or worker 0, which has drawn initial values, would draw other ones than the others
    places = {place: param.name for place, param in trainers.params_by_place(net).items()}
    found = Parallel(team, made, held, ModelFiles(team, held, places, made.symbol, net.prefix), first)
    if team.rank == 0 and tell:
        logger.info('%s', found.report())
        if dense is not None and job.distributed and dense != job.sums:
            logger.warning('the plan has dense weights summed by %s, but this job has them summed by %s, as its first '
                           'store, or %s, says, which counts', dense, job.sums, variable('dense'))
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
    #: How rows of tables travel, by name.
    tables: Mapping[str, TablePlan]
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
    symbol, graph, dimensions, axes, regroup = traced(net, data, batch_axis, dtype)
    settled = plan.settle(graph, dimensions, team.size)
    parts = Parts(graph, settled.splits)
    composed = dict(COMPOSED[True])
    if batch_norm == 'local':
        del composed['BatchNorm']
        _check_local(graph, dimensions, parts)
    flows = set(axes) if input_grad else set()
    shares = Shares(graph, axes, dimensions, team.size, team.rank, flows)
    return SplitNetwork(symbol, graph, plan, dimensions, parts, settled.notes, settled.tables, list(axes), shares,
                        regroup, composed)


def _check_local(graph: Graph, dimensions: Dimensions, parts: Parts) -> None:
    """InputError where statistics of samples alone would not be those of whole samples."""
    for one in graph.computing:
        if one.op == 'BatchNorm':
            for name, degree in zip(dimensions.names(one), parts.splits[one.number].degrees):
                if degree > 1 and name not in ('samples', 'channels'):
                    raise InputError("parallelize: batch_norm='local', but %s is split over %s: take 'joint', or "
                                     'another plan' % (graph.label(one), name))


def _as_dict(params: Dict[str, Any]) -> Any:
    """Parameters as a ParameterDict, which a Block has."""
    found = gluon.ParameterDict()
    found.update(params)
    return found
