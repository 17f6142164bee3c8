"""The rules of all operators: each is registered where its class is defined, and is found here by the name of the
operator.
"""
import functools
from typing import Any, Callable, Dict, Mapping, Optional, Type, TypeVar

from .factored_rule import FactoredRule
from .graph import Graph, Operator
from .rule import Collective, OnOneRank, Rule

_RULES: Dict[str, Rule] = {}
_WHOLE, _ON_ONE_RANK = Rule(), OnOneRank()

_Class = TypeVar('_Class', bound=Type[Rule])


def register(*names: str, **traits: Any) -> Callable[[_Class], _Class]:
    """Register a class of rules for operators, by their names in MXNet's graphs.

    - `**traits`: attributes of the class that have other values for these operators.
    """
    def add(rule_class: _Class) -> _Class:
        rule = rule_class()
        for trait, value in traits.items():
            assert hasattr(rule_class, trait), (rule_class, trait)
            setattr(rule, trait, value)
        for name in names:
            assert name not in _RULES, name
            _RULES[name] = rule
        return rule_class
    return add


def rules() -> Dict[str, Rule]:
    """Return the rules of all operators, by their names."""
    return dict(_RULES)


def rule_of(operator: Operator) -> Rule:
    """Return the rule of an operator; one without a rule is computed whole."""
    rule = _RULES.get(operator.op)
    if rule is None or not rule.covers(operator):
        rule = _ON_ONE_RANK if operator.draws else _WHOLE
    return _factored(rule) if operator.has_factors and not rule.takes_factors else rule


@functools.lru_cache(maxsize=None)
def _factored(rule: Rule) -> FactoredRule:
    return FactoredRule(rule)


def has_rule(operator: Operator) -> bool:
    """Return whether an operator has a rule of its own."""
    return operator.op in _RULES and not isinstance(_RULES[operator.op], OnOneRank)


def is_elementwise(operator: Operator) -> bool:
    """Return whether each element of an operator's output depends on one element of its only input."""
    rule = rule_of(operator)
    return rule.is_elementwise and not rule.not_replicable and len(operator.inputs) == 1


def indices(operator: Operator) -> Optional[int]:
    """Return the input of an operator that has indices, lengths or labels, through which no gradient flows."""
    index_input = rule_of(operator).index_input
    return index_input if index_input is not None and index_input < len(operator.inputs) else None


def multiplies_weights(graph: Graph, operator: Operator) -> bool:
    """Return whether an operator sums products of data and weights, as a layer does."""
    return rule_of(operator).partials(graph, operator) > 1 and any(
        source in graph.fixed and position != indices(operator) for position, (source, _) in enumerate(operator.inputs))


def collective_of(collectives: Mapping[str, Type[Collective]], operator: Operator) -> Optional[Type[Collective]]:
    """Return the builder of an operator that ranks compute together, one of `collectives`; None if there is no builder,
    or dimensions of its arrays have factors.
    """
    return None if operator.has_factors else collectives.get(operator.op)


def collectives(training: bool = True, joint_statistics: bool = True) -> Dict[str, Type[Collective]]:
    """Return the builders of operators that ranks compute together, by the operators' names.

    Normalization by statistics is not among them in inference, nor where each rank has statistics of its own.
    """
    return {name: rule.collective for name, rule in _RULES.items()
            if rule.collective is not None and (training and joint_statistics or not rule.has_statistics)}
