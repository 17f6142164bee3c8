"""The rule that chooses the route of a table, servers or allreduce, from the predicted costs of both."""
from dataclasses import dataclass
from typing import Optional

from .costs import Estimate

#: Allreduce is chosen if it is predicted to take at most this part of the servers' time: the move of a table costs
#: time, too, and the prediction has an error.
MARGIN = 0.8

#: If a step touches this part of the rows or more, both routes move about the same bytes.  Then allreduce is preferred:
#: without servers no forward pass waits for rows, and the servers have time for other tables.
NEAR_DENSE = 0.9
NEAR_DENSE_MARGIN = 1.1
#: Bytes below which a table stays on the servers unless forced: only latency would decide, and its noise is too large.
SMALL_TABLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Choice:
    """The `route` of a table, 'servers' or 'allreduce', and the reason.

    `because` is 'forced', 'small', 'measured', or 'memory' if allreduce would be chosen but does not fit: the table
    does not fit into the workers' memory, or a row of optimizer state does not fit into an answer of the servers.
    `touched` is the part of the rows that one worker, on average, touches in a step, `union` the part that all workers
    together touch.
    """

    route: str
    because: str
    touched: Optional[float] = None
    union: Optional[float] = None
    estimate: Optional[Estimate] = None


def weigh(predicted: Estimate, touched: float, union: float, fits: bool) -> Choice:
    """Choose allreduce or servers for a table.

    Allreduce is chosen if it `fits` and is clearly cheaper, or about as cheap for a near-dense table.
    """
    margin = NEAR_DENSE_MARGIN if union >= NEAR_DENSE else MARGIN
    if predicted.allreduce_s > margin * predicted.servers_s:
        return Choice('servers', 'measured', touched, union, predicted)
    return Choice('allreduce' if fits else 'servers', 'measured' if fits else 'memory', touched, union, predicted)
