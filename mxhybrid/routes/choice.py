"""Which way a table takes, servers or allreduce, and why: the rule, given what both would cost."""
from dataclasses import dataclass
from typing import Optional

from .costs import Estimate

#: Allreduce is chosen where it is predicted to take at most this part of the servers' time: moving a table costs
#: too, and the prediction has its error.
MARGIN = 0.8

#: Where a step touches this part of the rows or more, both ways move about the same bytes, and the scale tips the
#: other way: without servers no forward waits for rows, and the servers have time for other tables.
NEAR_DENSE = 0.9
NEAR_DENSE_MARGIN = 1.1
#: Bytes below which a table stays on the servers unless forced: latency alone would decide, within its noise.
SMALL_TABLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Choice:
    """Which `way` a table takes, 'servers' or 'allreduce', and why.

    `because` is 'forced', 'small', 'measured', or 'memory' where allreduce would be chosen but does not fit: into the
    workers' memory, or rows of optimizer state into what servers answer at a time.  `touched` is the part of the rows
    that one worker, on average, touches in a step, `union` that of all workers together.
    """

    way: str
    because: str
    touched: Optional[float] = None
    union: Optional[float] = None
    estimate: Optional[Estimate] = None


def weigh(predicted: Estimate, touched: float, union: float, fits: bool) -> Choice:
    """Weigh both ways: allreduce where it is clearly cheaper, or as cheap and the table near-dense, and it `fits`."""
    margin = NEAR_DENSE_MARGIN if union >= NEAR_DENSE else MARGIN
    if predicted.allreduce_s > margin * predicted.servers_s:
        return Choice('servers', 'measured', touched, union, predicted)
    return Choice('allreduce' if fits else 'servers', 'measured' if fits else 'memory', touched, union, predicted)
