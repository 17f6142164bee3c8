"""Rows of a table by partition, as a push deals them out."""
import numpy as np


def split(table, ids):
    """Positions in `ids` (sorted, unique, int64) that belong to each partition, in ascending order."""
    order = table.order(ids)
    return np.split(order, table.bounds(table.places(ids[order]))[1:-1])


def local(table, ids):
    """Row numbers inside their partitions of global rows `ids`."""
    return ids // table.count
