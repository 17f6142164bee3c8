"""The protocol between workers and servers: the modes of partitions, and the size of mailboxes.

A command of worker 0 is a name and arguments; the method ``do_<name>`` of :class:`mxhybrid.servers.handler.Handler`
carries it out.  The mode of a partition decides the meaning of pushes to it.
"""

#: Update the weights with the table's optimizer.
OPTIMIZE = 'optimize'
#: Overwrite the pushed rows, of weights or of sums of gradients.
ASSIGN = 'assign'
#: Overwrite the pushed rows and set all others to zero, as a store of MXNet without an optimizer does.
REPLACE = 'replace'
#: Ignore the pushed rows; only remember the array of the partition.
CAPTURE = 'capture'

#: Rules of compiled updates (``kernels/src/kernels/update.cc`` of the lane) for modes without an optimizer.
MODE_RULES = {CAPTURE: 'ignore', ASSIGN: 'assign', REPLACE: 'replace'}

_STATE = 'state:'
#: Elements (float32) of a mailbox: 256 KiB.  Each server has one, a dense key that worker 0 pulls, for long answers.
MAILBOX_ELEMENTS = 1 << 16


def overwrite_mode(slot: int) -> str:
    """Return the mode that overwrites the pushed rows of optimizer state `slot`, or of the weights for -1."""
    return ASSIGN if slot < 0 else _STATE + str(slot)


def state_slot(mode: str) -> int:
    """Return the slot of a mode that overwrites optimizer state; -1 for other modes."""
    return int(mode[len(_STATE):]) if mode.startswith(_STATE) else -1
