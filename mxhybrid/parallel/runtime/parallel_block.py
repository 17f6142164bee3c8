"""A network whose operators are split over all workers: what :func:`mxhybrid.parallelize` makes of one."""
import functools
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ...base.errors import InputError
from ...base.log import get_logger
from ...base.settings import variable
from ...base.text import size_text
from ...job.join import member
from ...kvstore.table_hints import set_table_hint
from ...kvstore.trainer_step import hooks_of
from ...kvstore.weight_shards import NETWORK_CALL, agreed, set_exchanges
from ...native import trainers
from ...native.recording import wants_gradient
from ..ops.registry import collectives, rule_of
from ..ops.tracing import shapes_of, traced
from ..plans.plan import Plan
from ..plans.plan_json import as_plan, save
from ..plans.strategies import Explicit
from ..redistribution.worker_group import WorkerGroup, worker_group_of
from ..sharding.box import shape_of
from .call_pool import CallPool
from .joint_work import joint_operators, joint_warning
from .layout_table import layout_table
from .model_files import ModelFiles
from .network_outline import outline_of_split
from .rank_program import Program
from .sharded_parameters import ShardedParameters, shard_parameters
from .split_network import SplitNetwork, apply_plan, reshape

logger = get_logger(__name__)

#: Numbers that exchanges of one network may have: an eighth each for training, for inference, and for further programs
#: of each where several calls wait for their backward passes; half of them for weights.
_NUMBERS = 1 << 20
_EIGHTH = _NUMBERS // 8


class Parallel(gluon.Block):
    """A network of which this worker computes its parts.  Made by :func:`mxhybrid.parallelize`.

    Its forward takes this worker's samples, and returns this worker's samples, as without a plan: those of
    :attr:`samples` in the joint batch.  All workers call it, in training as for inference.  It is trained by a
    ``gluon.Trainer`` with ``kvstore='hybrid'``; :meth:`collect_params` gives every parameter, under its name, with the
    values that this worker holds of it, or a placeholder of shape (1,) where that is none.
    """

    def __init__(self, workers: WorkerGroup, network: SplitNetwork, params: ShardedParameters, files: ModelFiles,
                 first: int,
                 root: Optional['Parallel'] = None):
        super().__init__(prefix='', params=None)
        self._workers, self._network, self._parameters, self._files = workers, network, params, files
        self._graph, self._shards, self._input_shards = network.graph, network.shards, network.input_shards
        self._root = None if root is None else weakref.ref(root)
        self._others = _Others()
        #: Whether a call was recorded.
        self._trained = False
        types = {one.name: self._graph.dtypes[one.number, 0] for one in self._graph.operators if one.op == 'null'}
        self._given = [(shape_of(self._input_shards.box(name)), types[name]) for name in network.names]
        joint = network.joint_statistics and any(rule_of(one).has_statistics for one in self._graph.computing)
        make = functools.partial(_program, workers, network, params)
        self._programs = {training: make(training, first + _EIGHTH * (not training))
                          for training in ([True, False] if joint else [True])}
        another = functools.partial(another_program, make, self._programs, first)
        self._calls = CallPool(self._programs, another, params.by_name)
        self.params.update(_as_dict(params.by_name))
        if root is None:
            for param in params.by_name.values():
                set_exchanges(param, self._exchanges_line())

    @property
    def samples(self) -> slice:
        """Which samples of the joint batch this worker gives and gets.  Where there are fewer of them than workers,
        several have the same one; then one of them gives the gradient.
        """
        return self._input_shards.samples

    @property
    def given(self) -> List[Tuple[Tuple[int, ...], Any]]:
        """Shape and type of what this worker gives, of each input."""
        return list(self._given)

    def for_data(self, data: Any) -> 'Parallel':
        """This network for joint batches of another shape, as the last one of an epoch or those of a test, with the
        same parameters (collective).  It is built once for each shape.

        Parameters
        ----------
        data : tuple of int, or list of them
            As for :func:`mxhybrid.parallelize`.

        Returns
        -------
        Parallel
            Its :attr:`samples` are those of such a batch.  The Trainer stays the same.

        Raises
        ------
        InputError
            On all workers: shapes that the network does not take, or for which the plan needs weights elsewhere, as
            where a batch has fewer samples than the plan splits it into.
        """
        root = None if self._root is None else self._root()
        if root is not None:
            return root.for_data(data)
        try:
            shapes = tuple(shapes_of(data))
            if shapes == tuple(self._graph.data[name] for name in self._network.names):
                return self
            if shapes in self._others.by_shapes:
                return self._others.by_shapes[shapes]
            made = reshape(self._network, data, self._workers)
        except InputError as error:
            self._workers.agree('for_data', None, str(error))
            raise
        self._workers.agree('for_data', outline_of_split('for_data', made, self._parameters.by_name))
        found = self._others.by_shapes[shapes] = Parallel(self._workers, made, self._parameters, self._files,
                                                          self._workers.reserve_numbers(_NUMBERS), self)
        return found

    @property
    def exchanges(self) -> int:
        """How many exchanges there are in a step of training, on all workers together."""
        return len(self._programs[True].redistributions)

    def _exchanges_line(self) -> str:
        made = self._programs[True].redistributions
        sent = sum(move.bytes_sent(one.dtype.itemsize) for one in made for move in (one.forward, one.backward))
        return '' if not made else ('exchanges between layers: %d in a step, forwards and backwards, in which this '
                                    'worker sends %s' % (len(made), size_text(sent)))

    def forward(self, *args: Any) -> Any:
        """This worker's samples of the network's outputs (on all workers).

        Raises
        ------
        InputError
            Another number of inputs, shapes or types than :func:`mxhybrid.parallelize` was told; inputs that want
            gradients where it was not told ``input_grad``; a Trainer with another store.
        """
        self._check(args)
        training = bool(autograd.is_training()) if len(self._programs) > 1 else True
        if self._programs[training].redistributions:
            self._workers.count_call(NETWORK_CALL)
        program, found = self._run(training, args)
        return self._network.traced.regroup(found[:program.outputs])

    def _check(self, args: Sequence[Any]) -> None:
        if len(args) != len(self._network.names):
            raise InputError('a parallelized network: %d inputs, but it was made for %d'
                             % (len(args), len(self._network.names)))
        for name, array, (wanted, _) in zip(self._network.names, args, self._given):
            if not isinstance(array, mx.nd.NDArray):
                raise InputError('a parallelized network: %s is a %s: give an NDArray' % (name, type(array).__name__))
            if tuple(array.shape) != wanted:
                raise InputError("a parallelized network: worker %d gives %s of shape %s, but its samples, "
                                 'batch[net.samples], have shape %s; for a joint batch of another size take '
                                 'net.for_data(shape)' % (self._workers.rank, name, tuple(array.shape), wanted))
        if autograd.is_recording():
            self._check_training(args)

    def _check_training(self, args: Sequence[Any]) -> None:
        for name, array in zip(self._network.names, args):
            # What was computed is looked at once, for that may be much.
            wanted = array.grad is not None or not self._trained and wants_gradient(array)
            if wanted and name not in self._input_shards.gradient_inputs:
                raise InputError('a parallelized network: %s comes from what has gradients, but none go back through '
                                 'this network: give parallelize input_grad=True, or %s.detach() to the network'
                                 % (name, name))
        trainer = next((trainers.trainer_of(param) for param in self._parameters.by_name.values()), None)
        self._trained = True
        if self._workers.size > 1 and trainer is not None and hooks_of(trainer) is None:
            raise InputError('a parallelized network: its parameters are trained with kvstore=%r, by each worker '
                             "alone: give the Trainer kvstore='hybrid'" % (trainers.wanted_store(trainer),))

    def _run(self, training: bool, args: Sequence[Any]) -> Any:
        try:
            return self._calls.run(training, dict(zip(self._network.names, args)))
        except mx.base.MXNetError as error:
            for name, array, (_, wanted) in zip(self._network.names, args, self._given):
                if array.dtype != wanted:
                    raise InputError('a parallelized network: %s has type %s, but %s was planned: give that, or '
                                     'parallelize another dtype' % (name, np.dtype(array.dtype), np.dtype(wanted))
                                     ) from error
            raise

    def save_plan(self, path: str) -> None:
        """Write how every operator is split, with digests of network and world, to a JSON file that
        :func:`mxhybrid.parallelize` takes as a plan.
        """
        save(path, Explicit({self._graph.label(one): self._shards.splits[one.number] for one in self._graph.computing},
                            self._graph.digest(), self._workers.size, store=self._network.plan.store))

    def report(self) -> str:
        """A table of all operators: how they are split, on which workers, what that takes and moves."""
        network = self._network
        return '\n'.join([layout_table(network.plan.name, network.graph, network.traced.dimensions, network.shards,
                                       self._programs[True].redistributions, self._workers.size, network.notes)]
                         + network.plan.store.words())

    __repr__ = report

    def forget(self) -> None:
        """It is not called any more, on any worker: exchanges let go of their memory."""
        self._calls.forget()
        for one in self._others.by_shapes.values():
            one.forget()

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
        return {'%s.%s' % (prefix, place) if prefix else place: self._parameters.by_name[name]
                for place, name in self._files.places.items()}

    def cast(self, dtype: Any) -> None:
        """Refused, but for the types that its parameters have.

        Raises
        ------
        InputError
            Types are planned.
        """
        if any(np.dtype(param.dtype) != np.dtype(dtype) for param in self._parameters.by_name.values()):
            raise InputError('cast: types of a network that is split are planned: cast it to %s before parallelize'
                             % np.dtype(dtype))

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """It is compiled anyway."""


class _Others:
    """The same network for joint batches of other shapes; gluon warns of Blocks in a dict that a Block has."""

    def __init__(self) -> None:
        self.by_shapes: Dict[Any, Parallel] = {}


def _program(workers: WorkerGroup, network: SplitNetwork, params: ShardedParameters, training: bool,
             first: int) -> Program:
    frozen = {name for name, param in params.by_name.items() if agreed(param)[0] == 'null'}
    input_shards = network.input_shards
    return Program(network.shards, workers.rank, input_shards.inputs, input_shards.outputs,
                   collectives(training, network.joint_statistics), workers.make_node, first,
                   input_shards.gradient_inputs, frozen)


def another_program(make: Callable[[bool, int], Program], programs: Dict[bool, Program], first: int, training: bool,
                    count: int) -> Program:
    """Make the count-th further program like one of `programs`, of a network whose numbers begin with `first`.

    Raises
    ------
    InputError
        There are no more numbers.
    """
    redistributions = len(programs[training].redistributions)
    if count * redistributions > _EIGHTH:
        raise InputError('a parallelized network: %d calls wait for their backward passes: run backward before '
                         'more calls' % (count + 1))
    return make(training, first + 2 * _EIGHTH + _EIGHTH * (not training) + (count - 1) * redistributions)


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
    workers = worker_group_of(job)
    try:
        if given is None:
            raise InputError(problem)
        made = apply_plan(traced(net, data, batch_axis, dtype), given, input_grad, batch_norm, workers)
    except InputError as error:
        problem = str(error)
        workers.agree('parallelize', None, problem)
        raise
    seed = workers.agree('parallelize', outline_of_split('parallelize', made, net.collect_params()))
    first = workers.reserve_numbers(_NUMBERS)
    drawn = any(trainers.awaits_shape(param) for param in net.collect_params().values())
    params = shard_parameters(net, made.shards, workers, first + _NUMBERS // 2)
    for name, table in made.tables.items():
        set_table_hint(params.by_name[name], table)
    if any(one.draws for one in made.graph.computing):
        mx.random.seed((seed + workers.rank) % 2 ** 31)  # or all parts would drop the same
    elif drawn:
        mx.random.seed(seed)  # or worker 0, which has drawn initial values, would draw other ones than the others
    places = {place: param.name for place, param in trainers.params_by_place(net).items()}
    found = Parallel(workers, made, params, ModelFiles(workers, params, places, made.traced.symbol, net.prefix), first)
    if workers.rank == 0 and tell:
        logger.info('%s', found.report())
        _warn_once(joint_warning(made.graph, joint_operators(made.graph, made.traced.dimensions, made.shards.splits,
                                                             workers.size), workers.size))
        if dense is not None and job.distributed and dense != job.sums:
            logger.warning('the plan has dense weights summed by %s, but this job has them summed by %s, as its first '
                           'store, or %s, says, which counts', dense, job.sums, variable('dense'))
    return found


@functools.lru_cache(maxsize=None)
def _warn_once(text: str) -> None:
    """Log a warning, once in a process."""
    if text:
        logger.warning('%s', text)


def _as_dict(params: Dict[str, Any]) -> Any:
    """Parameters as a ParameterDict, which a Block has."""
    found = gluon.ParameterDict()
    found.update(params)
    return found
