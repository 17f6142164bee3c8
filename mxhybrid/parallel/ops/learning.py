"""The operators that a backward pass reaches."""
from typing import Collection, Set

from .graph import Graph, Operator
from .registry import indices


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


def leads_to(operator: Operator, known: Set[int]) -> bool:
    """Return whether an operator reads one of the known operators through an input with a gradient."""
    used = indices(operator)
    return any(source in known for position, (source, _) in enumerate(operator.inputs) if position != used)
