"""A batch of operators that are timed between two readings of the reference, which show whether the machine was quiet.
"""
from .core_benchmark import REPEATS, Reference, read_reference
from .other_programs import BUSY_SHARE, OtherPrograms

#: Between both readings the machine's speed may change by this share.
_MOVED = 0.1


class TimingBatch:
    """Reads the reference, then watches what other programs compute until the end.

    Attributes
    ----------
    reference : Reference
        What the pieces of work took before the batch.
    """

    def __init__(self) -> None:
        reading = read_reference()
        self.reference: Reference = reading.reference
        self._problem = reading.problem
        self._others = OtherPrograms()

    def end(self) -> str:
        """Return words for what disturbed the batch; empty where the machine was quiet."""
        share = self._others.share()
        if share > BUSY_SHARE and not self._problem:
            self._problem = 'other programs had %.0f %% of the processors' % (100 * share)
        reading = read_reference(REPEATS // 2)
        moved = reading.reference.speed_beside(self.reference)
        if not self._problem and max(moved, 1 / moved) > 1 + _MOVED:
            self._problem = 'it became %.2f times as fast meanwhile' % moved
        return self._problem or reading.problem
