"""The outcome of a simulation: when each task is ready, starts and ends, and snapshots to resume from."""
import numpy as np

#: The times of a task in seconds, as ``src/event_loop.cc`` writes them; its position in the order in which tasks were
#: dispatched; and the number of predecessors that it still waits for.
EVENT = np.dtype([('ready', 'f8'), ('start', 'f8'), ('end', 'f8'), ('position', 'i4'), ('pending', 'i4')], align=True)
#: Numbers of a resource in a snapshot: when it is free, when it is free for high-priority tasks, the level of its token
#: bucket, and the share of its last task that is bound by arithmetic.
STATE = 4
_SNAPSHOTS = 128
_MAX_SNAPSHOTS = 512
_MIN_STRIDE = 64


class Timeline:
    """The events of all tasks, and snapshots of the resources.

    - `events` (numpy.ndarray of EVENT): by number of the task; `position` is -1 where the task was not dispatched.
    - `dispatched` (numpy.ndarray of int64): by snapshot: the number of tasks that were dispatched before it.
    - `last_ready` (numpy.ndarray of float64): by snapshot: when the last of those tasks was ready.
    - `states`: numpy.ndarray of float64, shape (snapshots, resources, STATE)
    - `snapshots` (numpy.ndarray of int64, shape (1,)): the number of snapshots.
    - `finish` (numpy.ndarray of float64, shape (1,)): the end of the last task.
    - `stride`: the number of tasks from one snapshot to the next.
    """

    def __init__(self, capacity: int, resources: int, stride: int):
        self.events = np.empty(capacity, EVENT)
        self.dispatched, self.last_ready = np.empty(_MAX_SNAPSHOTS, np.int64), np.empty(_MAX_SNAPSHOTS)
        self.states = np.empty((_MAX_SNAPSHOTS, resources, STATE))
        self.snapshots, self.finish = np.zeros(1, np.int64), np.zeros(1)
        self.stride = stride


def default_stride(tasks: int) -> int:
    """Return the stride of snapshots that suits a step of this number of tasks."""
    return max(_MIN_STRIDE, tasks // _SNAPSHOTS)
