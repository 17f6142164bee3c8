"""What sums of dense weights take where Horovod makes them, in a job whose own sums go by the lane."""
import functools
from typing import Callable, Dict, List, Tuple

from ...job.job import Job
from ..cluster.cluster_spec import TransferCost
from .cost_fitting import Sample, fit_cost, least_squares, relative_errors
from .cpu_meter import CpuMeter, Measurement
from .table_benchmark import TableSums
from .trainer_benchmark import DenseWeights, TrainerSteps

#: Seconds for each measurement.
_EACH_S = 0.4


class HorovodBenchmark:
    """Times them (collective).

    Horovod begins anew for it: where it has little to do, a job has it look for work less often, which would be part of
    what is measured.

    Parameters
    ----------
    job : Job
    meter : CpuMeter
    weights : list of DenseWeights
        Those of which steps are timed.
    rows : list of int
        Of tables, whose rows are summed.
    """

    def __init__(self, job: Job, meter: CpuMeter, weights: List[DenseWeights], rows: List[int]):
        assert job.collective is not None
        self._job, self._meter, self._weights, self._rows = job, meter, weights, rows
        self._around = job.collective.without_reduction

    @staticmethod
    def is_possible(job: Job) -> bool:
        """Whether a job can have both."""
        return job.collective is not None and job.collective.can_begin_anew

    @property
    def measurements(self) -> int:
        """How many there will be."""
        return len(self._weights) + len(self._rows)

    def costs(self, step: TransferCost, update: TransferCost, beyond: Callable[[float], float],
              told: Callable[..., None]) -> Dict[str, TransferCost]:
        """Costs of the kinds that :data:`.cluster_spec.BY_HOROVOD` has.

        Parameters
        ----------
        step, update : TransferCost
            What a step takes beside its sums.
        beyond : callable
            What of seconds without computing is latency beside that of messages.
        told : callable
            Is told of each fit: kind, and relative errors.
        """
        self._meter.barrier()
        self._job.restart_horovod()
        rows: List[Tuple[float, ...]] = []
        taken: List[Measurement] = []
        for weights in self._weights:
            steps = TrainerSteps(weights, self._around)
            taken.append(self._meter.measure(functools.partial(steps.step, True), steps.compute, _EACH_S))
            # Horovod puts together by itself what it finds at one look: there is no fixed part of each sum.
            rows.append((1.0, weights.number, weights.size))
        seconds = [max(0.0, one.core_s - step.per_item_s * own.number - update.seconds(own.number, own.size))
                   for one, own in zip(taken, self._weights)]
        found = [float(one) for one in least_squares(rows, seconds)]
        told('horovod_step and horovod_sum', relative_errors(rows, seconds, found))
        cost, left = self._table_sums(beyond)
        told('horovod_row_sum', left)
        return {'horovod_step': TransferCost(found[0], step.per_item_s, 0.0, step.latency_s),
                'horovod_sum': TransferCost(0.0, found[1], found[2], beyond(taken[0].elapsed_s - taken[0].core_s)),
                'horovod_row_sum': cost}

    def _table_sums(self, beyond: Callable[[float], float]) -> Tuple[TransferCost, List[float]]:
        samples: List[Sample] = []
        waits: List[float] = []
        for rows in self._rows:
            table = TableSums(self._job, rows, self._around)
            taken = self._meter.measure(table.sum, None, _EACH_S)
            samples.append(Sample(self._job.num_workers, table.size, taken.core_s))
            waits.append(taken.elapsed_s - taken.core_s)
        cost, left = fit_cost(samples, beyond(waits[0]))
        return cost, left.tolist()
