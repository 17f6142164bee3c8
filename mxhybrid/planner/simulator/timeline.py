"""When each task is ready, starts and ends; and what a simulation needs to go on from its middle."""
import numpy as np

#: Of a task, as ``src/event_loop.cc`` writes it: seconds, and its place in the order in which tasks were taken.
EVENT = np.dtype([('ready', 'f8'), ('start', 'f8'), ('end', 'f8'), ('place', 'i4'), ('needs', 'i4')], align=True)
#: Of a resource, in a snapshot: when it is free, when it is for what is express, and what its bucket holds.
STATE = 3
_SNAPSHOTS = 128
_MOST_SNAPSHOTS = 512
_SHORTEST_STRIDE = 64


class Timeline:
    """The outcome of one simulation.

    Attributes
    ----------
    events : numpy.ndarray of EVENT
        By number of the task; `place` is -1 for those that have none.
    taken : numpy.ndarray of int64
        Of snapshots: how many tasks were taken before.
    last : numpy.ndarray of float64
        When the last of those was ready.
    states : numpy.ndarray of float64, shape (snapshots, resources, STATE)
    snapshots : numpy.ndarray of int64, shape (1,)
        How many there are.
    finish : numpy.ndarray of float64, shape (1,)
        The last end of all.
    stride : int
        Tasks from one snapshot to the next.
    """

    def __init__(self, room: int, resources: int, stride: int):
        self.events = np.empty(room, EVENT)
        self.taken, self.last = np.empty(_MOST_SNAPSHOTS, np.int64), np.empty(_MOST_SNAPSHOTS)
        self.states = np.empty((_MOST_SNAPSHOTS, resources, STATE))
        self.snapshots, self.finish = np.zeros(1, np.int64), np.zeros(1)
        self.stride = stride


def default_stride(tasks: int) -> int:
    """Of a step of so many."""
    return max(_SHORTEST_STRIDE, tasks // _SNAPSHOTS)
