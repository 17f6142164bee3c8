"""The choice of a plan for a table, kept on its parameter until a Trainer tells its store.

:mod:`mxhybrid.parallel` marks the parameters.  Settings win over such a hint.
"""
from typing import Any, Dict, List

from ..base.settings import TablePlan

_ATTRIBUTE = 'mxhybrid_table_hint'


def set_table_hint(param: Any, table: TablePlan) -> None:
    """Mark `param`, before a Trainer has it, with the route and the partitions that a plan has for its rows."""
    setattr(param, _ATTRIBUTE, table)


def table_hints(params: List[Any]) -> Dict[str, TablePlan]:
    """Return the marks of parameters, by name."""
    return {param.name: getattr(param, _ATTRIBUTE) for param in params if hasattr(param, _ATTRIBUTE)}
