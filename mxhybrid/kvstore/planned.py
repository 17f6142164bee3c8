"""What a plan says of tables: :mod:`mxhybrid.parallel` marks the parameters, and their Trainer tells its store."""
from typing import Any, Dict, List

from ..base.settings import TablePlan

_ATTRIBUTE = 'mxhybrid_planned'


def set_planned(param: Any, table: TablePlan) -> None:
    """From now on, before a Trainer has it, rows of `param` travel so where settings say nothing of it."""
    setattr(param, _ATTRIBUTE, table)


def planned_tables(params: List[Any]) -> Dict[str, TablePlan]:
    """What plans say of parameters, by name."""
    return {param.name: getattr(param, _ATTRIBUTE) for param in params if hasattr(param, _ATTRIBUTE)}
