"""What keeps and takes the tasks of a simulation: a library that ``setup.py`` compiles, or Python where there is none.
"""
import functools
from typing import Callable, NamedTuple, Optional

import numpy as np

from ...base.log import get_logger
from . import event_loop
from .event_loop import Rates
from .native_event_loop import load_loop
from .native_library import planner_library
from .native_task_table import NativeTaskTable, load_table
from .task_table import PythonTaskTable, TaskTable
from .timeline import Timeline

_log = get_logger(__name__)


class Engine(NamedTuple):
    """Of one language: :class:`~.task_table.TaskTable` of blocks, with room for others, and what simulates those, as
    :func:`.event_loop.simulate` does.
    """

    slots: Callable[..., TaskTable]
    simulate: Callable[[TaskTable, Rates, Optional[Timeline], Timeline, np.ndarray, float, float], int]


#: The reference.
PYTHON = Engine(PythonTaskTable, event_loop.simulate)


@functools.lru_cache(maxsize=None)
def compiled_engine(path: str = '') -> Engine:
    """Without Python's lock, and from another library than the package's by its path; OSError where there is none."""
    library = planner_library(path)
    return Engine(functools.partial(NativeTaskTable, load_table(library)), load_loop(library))


@functools.lru_cache(maxsize=None)
def fastest_engine() -> Engine:
    """The compiled one, or that in Python."""
    try:
        return compiled_engine()
    except OSError as error:
        _log.warning('%s; until then plans are found by Python, many times slower', error)
        return PYTHON
