"""The Block of a split network, which :func:`mxhybrid.parallelize` returns."""
import functools
import types
import weakref
from typing import AbstractSet, Any, Callable, Dict, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ...base.errors import InputError
from ...base.text import size_text
from ...kvstore.trainer_step import hooks_of
from ...kvstore.weight_shards import NETWORK_CALL, set_redistributions
from ...native import trainers
from ...native.symbols import wants_gradient
from ..ops.registry import collectives, rule_of
from ..ops.tracing import shapes_of
from ..plans.plan_json import save
from ..plans.strategies import Explicit
from .call_pool import CallPool
from .dropped_networks import release_dropped
from .layout_table import layout_table, recompute_lines
from .micro_batches import output_boxes, read_boxes
from .model_files import ModelFiles
from .network_outline import outline_of_split
from .pipeline_calls import PipelineCalls
from .rank_program import Program, ProgramSpec
from .sharded_parameters import ShardedParameters
from .split_network import SplitNetwork, reshape

#: The count of numbers for redistributions of one network: an eighth each for training, for inference, and for
#: additional programs of each, if several calls wait for their backward passes; the other half is for weights.
NUMBERS = 1 << 20
_EIGHTH = NUMBERS // 8

#: The number of sets of frozen parameters whose programs a network keeps: scripts may train parts in turn.
_MOST_BUILDS = 2


class ParallelBlock(gluon.Block):
    """A network of which this worker computes its shards.  Made by :func:`mxhybrid.parallelize`.

    The forward pass takes and returns this worker's samples, as without a plan: those of :attr:`samples` in the joint
    batch.  All workers call it, in training and in inference.  It is trained by a ``gluon.Trainer`` with
    ``kvstore='hybrid'``; :meth:`collect_params` returns every parameter, under its name, with the values that this
    worker holds of it, or a placeholder of shape (1,) if it holds none.
    """

    def __init__(self, network: SplitNetwork, params: ShardedParameters, files: ModelFiles, first: int,
                 root: Optional['ParallelBlock'] = None):
        super().__init__(prefix='', params=None)
        self._workers, self._parameters, self._files = network.workers, params, files
        self._graph, self._shards, self._input_shards = network.graph, network.shards, network.input_shards
        self._root = None if root is None else weakref.ref(root)
        #: The same network for joint batches of other shapes, in an object: gluon warns of a Block's dict of Blocks.
        self._others = types.SimpleNamespace(by_shapes={})
        #: Whether a call was recorded.
        self._trained = False
        #: The shape and type of each input on this worker.
        self.local_inputs = self._input_shards.local_inputs
        #: Programs and calls by the set of frozen parameters, the latest last.
        self._builds: Dict[AbstractSet[str], _Build] = {network.frozen: self._built(network, first)}
        self._network, self._first, self._programs, self._calls = self._builds[network.frozen]
        self.params.update(params.by_name)
        if root is None:
            for param in params.by_name.values():
                set_redistributions(param, self._redistributions_line())

    def _built(self, network: SplitNetwork, first: int) -> '_Build':
        joint = network.joint_statistics and any(rule_of(operator).has_statistics
                                                 for operator in self._graph.computing)
        make, params = functools.partial(_program, network), self._parameters.by_name
        programs = {training: make(training, first + _EIGHTH * (not training))
                    for training in ([True, False] if joint else [True])}
        if network.stages is not None:
            return _Build(network, first, programs, PipelineCalls(network, network.stages, programs, params,
                                                                  first + 2 * _EIGHTH))
        another = functools.partial(another_program, make, programs, first)
        return _Build(network, first, programs, CallPool(programs, another, params))

    def _follow_parameters(self) -> None:
        """Use other programs if other parameters are frozen than in the last recorded call (collective then)."""
        frozen = trainers.frozen_names(self._parameters.by_name)
        if frozen == self._network.frozen:
            return
        self._calls.settle()
        network = self._network.with_frozen(frozen)
        self._workers.agree('a call after a change of grad_req', outline_of_split(
            'a call after a change of grad_req', network, self._parameters.by_name), draws=False)
        build = self._builds.pop(frozen, None) or self._built(network, self._workers.reserve_numbers(NUMBERS))
        self._builds = dict([*self._builds.items(), (frozen, build)][-_MOST_BUILDS:])
        self._network, self._first, self._programs, self._calls = build

    @property
    def samples(self) -> slice:
        """The samples of the joint batch that this worker takes and returns, as a slice.  If there are fewer samples
        than workers, several workers have the same sample; then one of them passes its gradient on.
        """
        return self._input_shards.samples

    def for_data(self, data: Any) -> 'ParallelBlock':
        """Return this network for joint batches of another shape, for example the last batch of an epoch or batches of
        a test, with the same parameters (collective).  It is built once for each shape.

        Parameters
        ----------
        data : tuple of int, or list of them
            As for :func:`mxhybrid.parallelize`.

        Returns
        -------
        ParallelBlock
            Its :attr:`samples` are those of such a batch.  The Trainer remains the same.

        Raises
        ------
        InputError
            On all workers: shapes that the network does not take, or for which the plan needs other shards of weights,
            for example if a batch has fewer samples than the plan has shards of it.
        """
        root = None if self._root is None else self._root()
        if root is not None:
            return root.for_data(data)
        try:
            shapes = tuple(shapes_of(data))
            if shapes == tuple(self._network.joint.graph.data[name] for name in self._network.names):
                return self
            if shapes in self._others.by_shapes:
                return self._others.by_shapes[shapes]
            network = reshape(self._network, data)
        except InputError as error:
            self._workers.agree('for_data', None, str(error))
            raise
        self._workers.agree('for_data', outline_of_split('for_data', network, self._parameters.by_name))
        other = self._others.by_shapes[shapes] = ParallelBlock(network, self._parameters, self._files,
                                                          self._workers.reserve_numbers(NUMBERS), self)
        return other

    @property
    def redistributions(self) -> int:
        """The number of redistributions of tensors in a training step, on all workers together."""
        return len(self._programs[True].redistributions) * self._network.plan.micro_batches

    def _redistributions_line(self) -> str:
        redistributions = self._programs[True].redistributions
        sent = sum(transfer.bytes_sent(redistribution.dtype.itemsize) for redistribution in redistributions
                   for transfer in (redistribution.forward, redistribution.backward))
        if not redistributions:
            return ''
        return ('redistributions between layers: %d in a step, forwards and backwards, in which this worker sends %s'
                % (self.redistributions, size_text(sent * self._network.plan.micro_batches)))

    def forward(self, *args: Any) -> Any:
        """Return this worker's samples of the network's outputs (all workers call it).

        Raises
        ------
        InputError
            The number, shapes or types of inputs are not those that :func:`mxhybrid.parallelize` was given; inputs need
            gradients, but it was not given ``input_grad``; the Trainer has another store.
        """
        if autograd.is_recording():
            self._follow_parameters()
        self._check(args)
        release_dropped()
        training = bool(autograd.is_training()) if len(self._programs) > 1 else True
        if self._programs[training].redistributions:
            self._workers.count_call(NETWORK_CALL)
        outputs = self._run(training, args)
        return self._network.traced.regroup(outputs[:len(self._graph.heads)])

    def _check(self, args: Sequence[Any]) -> None:
        if len(args) != len(self._network.names):
            raise InputError('a parallelized network was called with %d inputs: give %d, as in parallelize'
                             % (len(args), len(self._network.names)))
        for name, array, (shape, _) in zip(self._network.names, args, self.local_inputs):
            if not isinstance(array, mx.nd.NDArray):
                raise InputError('a parallelized network: %s is a %s: give an NDArray' % (name, type(array).__name__))
            if tuple(array.shape) != shape:
                raise InputError("a parallelized network: worker %d gives %s of shape %s, but its samples, "
                                 'batch[net.samples], have shape %s; for a joint batch of another size take '
                                 'net.for_data(shape)' % (self._workers.rank, name, tuple(array.shape), shape))
        if self._workers.is_cancelled(self._first):
            raise InputError('a parallelized network was called again after operations of its last call failed, and '
                             'redistributions of that call were discarded: parallelize the network again')
        if autograd.is_recording():
            self._check_training(args)

    def _check_training(self, args: Sequence[Any]) -> None:
        if self._network.untrainable:
            raise InputError('a parallelized network: ' + self._network.untrainable)
        for name, array in zip(self._network.names, args):
            # The history of an array, which may be long, is examined in the first recorded call only.
            needs_gradient = array.grad is not None or not self._trained and wants_gradient(array)
            if needs_gradient and name not in self._input_shards.gradient_inputs:
                raise InputError('a parallelized network: %s needs a gradient, but none goes back to the inputs of '
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
            for name, array, (_, planned_dtype) in zip(self._network.names, args, self.local_inputs):
                if array.dtype != planned_dtype:
                    raise InputError('a parallelized network: %s has type %s, but %s was planned: give that, or '
                                     'parallelize another dtype' % (name, np.dtype(array.dtype),
                                                                    np.dtype(planned_dtype))
                                     ) from error
            raise

    def save_plan(self, path: str) -> None:
        """Write the split of every operator, with a digest of the network and the number of workers, to a JSON file
        that :func:`mxhybrid.parallelize` takes as a plan.
        """
        splits = {self._graph.label(operator): self._shards.splits[operator.number]
                  for operator in self._graph.computing}
        plan = Explicit(splits, self._graph.digest(), self._workers.size, store=self._network.plan.store,
                        stages=self._network.stages)
        save(path, plan.with_recompute(self._network.plan.recompute))

    def report(self) -> str:
        """Return a table of all operators: their layouts, their workers, their memory and their communication."""
        network = self._network
        return '\n'.join([layout_table(network.plan.name, network.traced.dimensions, network.shards,
                                       self._programs[True].redistributions, self._workers.size, network.notes,
                                       network.stages)]
                         + [network.undivided] * bool(network.undivided)
                         + recompute_lines(network.graph, network.segments) + network.plan.store.words())

    __repr__ = report

    def release(self) -> None:
        """Release the memory of redistributions: no worker calls the network again.

        A later call of a split network does this for a network to which no object refers any more, once no backward
        pass of its recorded calls can come.
        """
        for build in self._builds.values():
            build.calls.forget()
        for other in self._others.by_shapes.values():
            other.release()

    # -- whole models ----------------------------------------------------------------------------------------------

    def save_parameters(self, filename: Any, deduplicate: bool = False) -> None:
        """Write the file of the network's ``save_parameters``: whole weights, by their paths in it (collective: all
        workers call it, worker 0 writes).

        Parameters
        ----------
        filename : str or path
            A file on worker 0's host.
        deduplicate : bool, optional
            Whether a weight that several layers share is written only once.

        Raises
        ------
        CheckpointError
            On all workers, if worker 0 cannot write; a file of that name is not changed then.
        """
        self._files.save(filename, deduplicate)

    def load_parameters(self, filename: Any, ctx: Any = None, allow_missing: bool = False, ignore_extra: bool = False,
                        cast_dtype: bool = False, dtype_source: str = 'current') -> None:
        """Read a file of the network's ``save_parameters``, whatever its plan was (collective: all workers call it,
        worker 0 reads).

        Parameters
        ----------
        filename : str or path
            A file on worker 0's host.
        ctx, allow_missing, ignore_extra, cast_dtype, dtype_source
            As for ``load_parameters`` of gluon; split weights keep their types.

        Raises
        ------
        InputError
            On all workers: the file lacks a parameter, has an additional one, or one of another shape or type; nothing
            is changed then.  The error is also an AssertionError and a ValueError, which gluon raises.
        CheckpointError
            On all workers, if worker 0 cannot read.
        """
        self._files.load(filename, ctx, allow_missing, ignore_extra, cast_dtype, dtype_source)

    def export(self, path: Any, epoch: int = 0, remove_amp_cast: bool = True) -> None:
        """Write the network for ``gluon.SymbolBlock.imports``, as ``export`` of the network does (collective: all
        workers call it, worker 0 writes).

        Parameters
        ----------
        path : str or path
            A path on worker 0's host, to which ``-symbol.json`` and ``-0000.params`` are added.
        epoch : int, optional
            The number in the second name.
        remove_amp_cast : bool, optional
            Whether casts of AMP are left out.

        Raises
        ------
        CheckpointError
            On all workers, if worker 0 cannot write.
        """
        self._files.export(path, epoch, remove_amp_cast)

    def _collect_params_with_prefix(self, prefix: str = '') -> Dict[str, Any]:
        """Return the parameters by their paths in the network, also if it is part of another Block."""
        return {'%s.%s' % (prefix, path) if prefix else path: self._parameters.by_name[name]
                for path, name in self._files.paths.items()}

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Do nothing: a split network is always compiled."""


class _Build(NamedTuple):
    """The programs of a network for one set of frozen parameters, and its calls.

    The numbers of its redistributions begin with `first`.
    """

    network: SplitNetwork
    first: int
    programs: Dict[bool, Program]
    calls: Any


def _program(network: SplitNetwork, training: bool, first: int) -> Program:
    workers, input_shards = network.workers, network.input_shards
    inputs, outputs = input_shards.inputs, input_shards.outputs
    if network.stages is not None:
        inputs = read_boxes(network.graph, network.shards)
        outputs = {entry: [boxes] for entry, boxes in
                   output_boxes(network.graph, network.joint.dimensions, network.shards.splits).items()}
    spec = ProgramSpec(network.shards, inputs, outputs, collectives(training, network.joint_statistics),
                       input_shards.gradient_inputs, network.frozen, network.segments if training else (),
                       network.stages is not None)
    program = Program(spec, workers.rank, workers.make_node, first, workers.fail)
    if program.redistributions:
        _ = workers.transport  # a worker without a part in any of them has not opened it
    return program


def another_program(make: Callable[[bool, int], Program], programs: Dict[bool, Program], first: int, training: bool,
                    count: int) -> Program:
    """Make the count-th additional program like one of `programs`, for a network whose numbers begin with `first`.

    Raises InputError if there are no numbers left.
    """
    redistributions = len(programs[training].redistributions)
    if count * redistributions > _EIGHTH:
        raise InputError('a parallelized network: %d calls wait for their backward passes: run backward before '
                         'more calls' % (count + 1))
    return make(training, first + 2 * _EIGHTH + _EIGHTH * (not training) + (count - 1) * redistributions)
