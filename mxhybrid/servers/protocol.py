"""What both ends of the servers agree on: what a push means, and how much a server answers at once.

A command of worker 0's is a name and arguments; the method ``do_<name>`` of :class:`mxhybrid.servers.handler.Handler`
carries it out.  What a server does with a push depends on the mode of the partition that it goes to.
"""

#: Update the weights with the table's optimizer.
OPTIMIZE = 'optimize'
#: Overwrite the pushed rows; serves for weights and for sums of gradients.
ASSIGN = 'assign'
#: Overwrite the pushed rows and zero all others, as a store of MXNet without an optimizer does.
REPLACE = 'replace'
#: Only remember where the partition lives.
CAPTURE = 'capture'

_STATE = 'state:'
#: Elements of a mailbox, float32: 256 KiB.  Each server has one, a dense key that a worker pulls, for bulk answers.
MAILBOX_ELEMENTS = 1 << 16


def overwrite_mode(slot: int) -> str:
    """Overwrite the pushed rows of optimizer state `slot`, or of the weights if that is -1."""
    return ASSIGN if slot < 0 else _STATE + str(slot)


def state_slot(mode: str) -> int:
    """The slot of a mode that :func:`overwrite_mode` made for optimizer state; -1 for other modes."""
    return int(mode[len(_STATE):]) if mode.startswith(_STATE) else -1
