"""The operators that a backward pass reaches."""
from typing import Collection, Set

from ...native.symbols import passes_gradient
from .graph import Entry, Graph, Operator
from .registry import indices, rule_of


def learning_operators(graph: Graph, frozen: Collection[str], gradient_inputs: Collection[str]) -> Set[int]:
    """Return the numbers of trained parameters, of data with gradients, and of the operators that read any of them
    through inputs with gradients.
    """
    learning: Set[int] = set()
    for operator in graph.operators:
        if operator.op != 'null':
            learns = leads_to(operator, learning)
        elif graph.is_parameter(operator.number):
            learns = operator.name not in frozen and operator.name not in graph.auxiliary
        else:
            learns = operator.name in gradient_inputs
        if learns:
            learning.add(operator.number)
    return learning


def entries_with_gradients(graph: Graph) -> Set[Entry]:
    """Return the outputs of operators to which a gradient may come back that MXNet does not know to be zero.

    Behind ``F.floor``, for example, it is known to be zero, and operators before it make no backward pass.  With zeros
    that a redistribution brings back, the gradient of sqrt at 0 would be 0 times infinity.
    """
    entries = set(graph.heads)
    for operator in reversed(graph.operators):
        if operator.op != 'null' and (rule_of(operator).is_loss or any((operator.number, output) in entries
                                                               for output in range(operator.outputs))):
            entries.update(entry for position, entry in enumerate(operator.inputs)
                           if entry[0] not in graph.fixed and _passes_gradient(operator, position))
    return entries


def asks_for_gradient(operator: Operator, asked: Collection[int]) -> bool:
    """Return whether MXNet makes a backward pass of an operator for the sake of one of these operators that it reads.

    It makes none of what reads a loss alone, or ``F.floor`` alone, whose gradient it knows to be zero.
    """
    return not rule_of(operator).ignores_gradient and any(
        source in asked and _passes_gradient(operator, position)
        for position, (source, _) in enumerate(operator.inputs))


def _passes_gradient(operator: Operator, position: int) -> bool:
    return passes_gradient(operator.op, len(operator.inputs), tuple(operator.settings.items()), position)


def leads_to(operator: Operator, known: Set[int]) -> bool:
    """Return whether an operator reads one of the known operators through an input with a gradient."""
    used = indices(operator)
    return any(source in known for position, (source, _) in enumerate(operator.inputs) if position != used)
