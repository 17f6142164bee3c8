"""Contenders that do the same work, one after the other: the parts of the benchmark that all workloads share."""
import argparse
from typing import Any, Callable, Dict, List, Optional

from .contender_job import ContenderJob


class Comparison:
    """A workload and its contenders, which `cli` runs in turn.

    Attributes
    ----------
    unit : str
        The unit of throughput: words, images or samples.
    worker_units : int
        The number of these units that a worker handles in a step.
    width : float
        Factor on the published width of all arrays.
    """

    unit = 'samples'
    worker_units: int
    width = 1.0

    def __init__(self, args: argparse.Namespace):
        self._args = args

    def units(self, hosts: int) -> int:
        """Return the words, images or samples that all workers handle in a step."""
        return self.worker_units * hosts * self._args.workers

    def describe(self) -> str:
        """Describe the model, and its size."""
        raise NotImplementedError

    def bound(self, hosts: int, mbit: Optional[float]) -> Optional[Dict[str, Any]]:
        """Return the lower bound in the form of a contender's figures; None if the workers compute, too."""

    def skipped(self, hosts: int) -> Dict[str, str]:
        """Return the contenders that cannot take part, and the reasons."""
        return {}

    def told(self, contenders: Dict[str, Dict[str, Any]]) -> List[str]:
        """Return sentences about the figures of all contenders."""
        return []

    def run(self, testbed: Any, hosts: int, contender: str, check: Callable[[], None]) -> Dict[str, Any]:
        """Run the job of a contender, and return its figures.

        `check` is called while the job runs, and may raise.  JobFailed if the job does not end with success, or if its
        result differs from the right one, or from that of the contender before it.
        """
        raise NotImplementedError

    def _job(self, testbed: Any, hosts: int, check: Callable[[], None]) -> ContenderJob:
        args = self._args
        return ContenderJob(testbed, hosts, args.workers, args.timeout, dict(args.env), check)
