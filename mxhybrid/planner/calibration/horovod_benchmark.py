"""The cost of sums of dense weights by Horovod, in a job whose own sums travel by the lane."""
import functools
from typing import Callable, Dict, List, Tuple

from ...job.job import Job
from ..cluster.cluster_spec import TransferCost
from .cache_eviction import CacheEviction
from .cost_fitting import Sample, fit_cost, least_squares, relative_errors
from .cpu_meter import CpuMeter, Measurement
from .table_benchmark import TableSums
from .trainer_benchmark import DenseWeights, TrainerSteps

#: Seconds for each measurement.
_EACH_S = 0.4


class HorovodBenchmark:
    """Times sums by Horovod (collective).

    It restarts Horovod first: a job in which Horovod has little to do makes it look for work less often, which would
    make the measured times longer.

    Parameters
    ----------
    job : Job
    meter : CpuMeter
    weights : list of DenseWeights
        The weights whose steps are timed.
    rows : list of int
        The numbers of rows of the tables that are summed.
    """

    def __init__(self, job: Job, meter: CpuMeter, weights: List[DenseWeights], rows: List[int]):
        assert job.collective is not None
        self._job, self._meter, self._weights, self._rows = job, meter, weights, rows
        self._around = job.collective.without_reduction

    @staticmethod
    def is_possible(job: Job) -> bool:
        """Return whether a job has both ways to sum."""
        return job.collective is not None and job.collective.can_restart

    @property
    def measurements(self) -> int:
        """The number of measurements."""
        return len(self._weights) + len(self._rows)

    def costs(self, step: TransferCost, update: TransferCost, extra_latency: Callable[[float], float],
              report: Callable[..., None]) -> Dict[str, TransferCost]:
        """Return the costs of the kinds in :data:`.cluster_spec.BY_HOROVOD`.

        Parameters
        ----------
        step, update : TransferCost
            The cost of a step without its sums.
        extra_latency : callable
            Returns, for the seconds in which no core computes, the latency beyond that of messages.
        report : callable
            Called with the kind and the relative errors of each fit.
        """
        self._meter.barrier()
        self._job.restart_horovod()
        rows: List[Tuple[float, ...]] = []
        measurements: List[Measurement] = []
        for weights in self._weights:
            steps = TrainerSteps(weights, self._around)
            measurements.append(self._meter.measure(functools.partial(steps.step, True), steps.compute, _EACH_S))
            # Horovod fuses whatever it finds at one time: no sum has a fixed part of its own.
            rows.append((1.0, weights.number, weights.size))
        seconds = [max(0.0, measurement.core_s - step.per_item_s * weights.number
                       - update.seconds(weights.number, weights.size))
                   for measurement, weights in zip(measurements, self._weights)]
        fixed, per_item, per_byte = coefficients = least_squares(rows, seconds).tolist()
        report('horovod_step and horovod_sum', relative_errors(rows, seconds, coefficients))
        row_sum, errors = self._measure_table_sums(extra_latency)
        report('horovod_row_sum', errors)
        latency = extra_latency(measurements[0].elapsed_s - measurements[0].core_s)
        return {'horovod_step': TransferCost(fixed, step.per_item_s, 0.0, step.latency_s),
                'horovod_sum': TransferCost(0.0, per_item, per_byte, latency), 'horovod_row_sum': row_sum}

    def _measure_table_sums(self, extra_latency: Callable[[float], float]) -> Tuple[TransferCost, List[float]]:
        samples: List[Sample] = []
        waits: List[float] = []
        eviction = CacheEviction()
        for rows in self._rows:
            table = TableSums(self._job, rows, self._around)
            measurement = self._meter.measure(table.sum, eviction.run, _EACH_S)
            samples.append(Sample(self._job.num_workers, table.size, measurement.core_s))
            waits.append(measurement.elapsed_s - measurement.core_s)
        cost, errors = fit_cost(samples, extra_latency(waits[0]))
        return cost, errors.tolist()
