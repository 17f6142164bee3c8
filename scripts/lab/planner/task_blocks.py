"""Blocks of tasks from numbers: the planner makes its blocks by compiled code."""
from typing import Any, Mapping, Sequence, Union

import numpy as np

from mxhybrid.planner.simulator.task_block import TASK, BlockContent, BlockInput, Dependencies, TaskBlock, output_table

Numbers = Union[float, Sequence[Any], np.ndarray]


def task_block(key: int, resource: Sequence[int], work: Numbers, second: Any = -1, latency: Numbers = 0.0,
               high_priority: Any = False, edges: Any = (), outputs: Union[Mapping[int, int], Any] = (),
               dependencies: Any = (), arithmetic: Numbers = 0.0) -> TaskBlock:
    """Return a block of n tasks.

    - `key`: see :class:`TaskBlock`.
    - `resource` (array_like of int, shape (n,)): the resource of each task; -1 for a join, which needs none.
    - `work` (float or array_like, shape (n,)): in units of the resource: bytes, or seconds of a core.
    - `second` (int or array_like of int, shape (n,)): another resource that a task holds at the same time, or -1.
    - `latency` (float or array_like, shape (n,)): seconds from the end of a task until its successors may start; its
      resources are free during this time.
    - `high_priority` (bool or array_like of bool, shape (n,)): whether a task overtakes tasks of normal priority that
      wait for its resource.
    - `edges` (array_like of int, shape (m, 2)): pairs of a task and its successor in the block, by index.
    - `outputs` (mapping of int to int, or array_like of int, shape (p, 2)): by output, a small number that tasks of
      other blocks wait for: the task of this block, by index.
    - `dependencies` (array_like of int, shape (w, 3)): triples of a task by index, the key of another block, and the
      output of that block that the task waits for.
    - `arithmetic` (float or array_like, shape (n,)): the share of the work that is bound by arithmetic, from 0 to 1;
      the rest is bound by memory.
    """
    tasks = np.zeros(len(resource), TASK)
    for name, values in (('resource', resource), ('work', work), ('second', second), ('latency', latency),
                         ('high_priority', high_priority), ('arithmetic', arithmetic)):
        tasks[name] = values
    tasks['order'] = np.arange(len(tasks))
    edges, dependencies = np.reshape(edges, (-1, 2)).astype(int), np.reshape(dependencies, (-1, 3)).astype(int)
    ends = np.bincount(edges[:, 0], minlength=len(tasks)).cumsum()
    tasks['inner_end'] = ends
    tasks['inner'][1:] = ends[:-1]
    successors = edges[edges[:, 0].argsort(kind='stable'), 1].astype(np.int32)
    output_rows = np.reshape(list(outputs.items()) if isinstance(outputs, Mapping) else outputs, (-1, 2)).astype(int)
    inputs = [BlockInput(other, Dependencies(*dependencies[dependencies[:, 1] == other][:, ::2].T))
              for other in np.unique(dependencies[:, 1]).tolist()]
    return TaskBlock(int(key), BlockContent(tasks, successors, output_table(*output_rows.T)), inputs)
