"""The arrays of a Trainer's steps, looked up once for all steps in which they stay the same objects.

gluon gives the arrays of one parameter at a time, by several calls of Python, and each property of an array is a call
of MXNet's library.  Most steps work on the same arrays as the step before.  Everything that follows from them is
computed once, and computed again when anything that it depends on is another object: a parameter, its class, its
``grad_req``, its arrays, or any attribute that was added to it.
"""
import itertools
import operator
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from mxnet.gluon.parameter import Constant, Parameter

from ..native.arrays import is_same
from ..native.trainers import (
    has_dense_gradient,
    is_ready,
    is_row_sparse,
    lists_of,
    params_of,
    step_attributes,
    trained_params,
)
from .on_demand_copy import OnDemandParameter
from .weight_shards import shard_of, shards_in

#: Classes whose methods return the arrays in these attributes.
_CLASSES = (Parameter, Constant, OnDemandParameter)

#: A key and its parameter.
Trained = Tuple[int, Any]


class Gradients(NamedTuple):
    """The parameters of a step by the way in which their gradients travel."""

    #: Keys, parameters and shards of weights that are sharded.
    sharded: List[Tuple[int, Any, Any]]
    dense: List[Trained]
    sparse: List[Trained]
    #: Keys of the dense gradients, and their arrays, one for each device.
    dense_keys: Tuple[int, ...]
    dense_arrays: Tuple[Tuple[Any, ...], ...]

    @classmethod
    def of(cls, trained: Sequence[Trained]) -> 'Gradients':
        """Sort the parameters of a step."""
        sharded = [(key, param, shard) for key, param in trained for shard in [shard_of(param)] if shard is not None]
        whole = [(key, param) for key, param in trained if shard_of(param) is None]
        dense = [(key, param) for key, param in whole if has_dense_gradient(param)]
        return cls(sharded, dense, [(key, param) for key, param in whole if not has_dense_gradient(param)],
                   tuple(key for key, _ in dense), tuple(tuple(param.list_grad()) for _, param in dense))


class StepArrays:
    """The parameters that are not frozen, with their arrays; :func:`step_arrays` makes it."""

    def __init__(self, trainer: Any):
        self._params = list(params_of(trainer))
        self._attributes = list(map(vars, self._params))
        self._dependencies = self._look()
        self._shards = shards_in(self._attributes)
        self.trained = trained_params(trainer)
        self.gradients = Gradients.of(self.trained)
        #: Weights and gradients of all devices, in the order of the keys.
        self.keys = tuple(key for key, _ in self.trained)
        lists = [lists_of(param) for _, param in self.trained]
        self._weights, self._gradients = [weights for weights, _ in lists], [gradients for _, gradients in lists]
        self.all_weights = tuple(itertools.chain.from_iterable(self._weights))
        self.all_gradients = tuple(itertools.chain.from_iterable(self._gradients))
        #: Whether MXNet's Trainer would update dense weights on one device.
        self.on_one_device = (all(len(arrays) == 1 for arrays in self._weights + self._gradients)
                              and not any(is_row_sparse(param) for _, param in self.trained))

    def _look(self) -> List[Any]:
        """Return the objects from which everything here follows."""
        return [*map(type, self._params), *map(len, self._attributes),
                *itertools.chain.from_iterable(map(step_attributes, self._attributes))]

    def is_current(self, trainer: Any) -> bool:
        """Return whether the Trainer still has these parameters and arrays."""
        return (is_same(self._params, params_of(trainer)) and all(map(operator.is_, map(vars, self._params),
                                                                      self._attributes))
                and is_same(self._look(), self._dependencies)
                and is_same(shards_in(self._attributes), self._shards)
                # Scripts may put other arrays into these lists.
                and is_same(list(itertools.chain.from_iterable(self._weights)), self.all_weights)
                and is_same(list(itertools.chain.from_iterable(self._gradients)), self.all_gradients))


def step_arrays(trainer: Any, last: Optional[StepArrays]) -> Optional[StepArrays]:
    """Return the arrays of a step, those of the `last` step if nothing has changed.

    None if a parameter has no arrays yet, or a class of the script's own: then MXNet's methods have to be called.
    """
    if last is not None and last.is_current(trainer):
        return last
    params = params_of(trainer)
    usual = all(type(param) in _CLASSES and is_ready(param) for param in params)
    # A method that the script has given to one parameter.
    usual = usual and not any(callable(getattr(Parameter, name, None)) for param in params for name in vars(param))
    return StepArrays(trainer) if usual else None
