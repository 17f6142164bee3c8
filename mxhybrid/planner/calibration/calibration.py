"""Measures the cluster that a job runs on: ``mxhybrid calibrate``.

Everything is done as in training: redistributions of a split network, steps of a Trainer, pushes and pulls of a table,
sums of all its rows.  Several sizes of each are timed on all workers at once.  A fitted cost explains the seconds of
cores; the rest of the elapsed time is latency.
"""
import dataclasses
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from ...base.log import get_logger
from ...job.job import Job
from ...kvstore import hooks
from ...parallel.redistribution.worker_group import worker_group_of
from ..cluster.cluster_spec import Cluster, Host, TransferCost
from ..profiling.core_benchmark import MEMORY_BYTES
from ..simulator.resource_groups import TokenBucket
from .core_speeds import CoreSpeeds
from .cost_fitting import Sample, StepReading, fit_bucket, fit_cost, fit_steps, least_squares, transfer_seconds
from .cpu_meter import CacheEviction, CpuMeter, Measurement, TimeBudget
from .host_resources import core_share, hosts_of, local_resources
from .redistribution_benchmark import RedistributionBenchmark
from .redistribution_workload import GroupSums, all_to_all, shifted
from .table_benchmark import ROW_BYTES, TABLE_ROWS, TableRows, TableSums
from .trainer_benchmark import DenseWeights, ScriptSteps, TrainerSteps

logger = get_logger(__name__)

#: Bytes of transfers after a pause; there are no larger ones once one has taken :data:`LONG_ENOUGH_S`.
LINK_BYTES = tuple(1 << power for power in range(12, 24))
LONG_ENOUGH_S = 0.15
#: Bytes that a rank sends in a redistribution, or has in a sum over a group.
REDISTRIBUTION_BYTES = (1 << 10, 1 << 15, 1 << 18, 1 << 20)
#: Numbers of layers of networks whose calls are timed; each layer has two parameters.
LAYERS = (ScriptSteps.LEAST_LAYERS, 32)
#: Steps of a script that follow one another in a measurement: workers that share a core do not end a step together, and
#: a worker waits for the last one in the next step.
SCRIPT_STEPS = 5
#: Maximal bytes of weights, and rows of a worker; fewer if a link would take longer than these seconds.
MOST_BYTES, MOST_ROWS, SUM_S, REDISTRIBUTION_S = 16 << 20, 8192, 0.15, 0.05
#: Weights that each rank has for itself.  The largest ones have the size of those that are summed: updates of 2 MB take
#: half as long again for each byte, and an error in the updates would be an error in the sums.
OWN_WEIGHTS = (DenseWeights(2, 256), DenseWeights(64, 256), DenseWeights(2, 1 << 20), DenseWeights(2, 1 << 21))
#: Sizes of the tables whose rows are summed by allreduce.
TABLE_BYTES = (1 << 16, 1 << 19, 1 << 21, 1 << 23)
#: Repeats of the core benchmark, at the beginning and at the end.
SPEED_REPEATS, LAST_REPEATS = 4, 2
#: Numbers of redistribution sizes, and of kinds of weights, that are measured even if time is up.
LEAST_SIZES, LEAST_WEIGHTS = 3, 5
#: Seconds of a calibration, and how they are shared out over its parts.
SECONDS = 41.0
SHARES = {'cores': 4.0, 'links': 5.0, 'memory': 2.0, 'redistributions': 7.0, 'sums of groups': 2.5, 'steps': 11.0,
          'rows': 3.5, 'sums of rows': 2.0, 'transfers at the same time': 0.5}


class Calibration:
    """A measurement of a job's cluster (collective).

    Parameters
    ----------
    job : Job
        A job of at least two workers.
    progress : callable, optional
        Called with the name of each part before it is measured.
    seconds : float, optional
        The time budget.  If it is short, transfers are repeated less often, at least twice; then some sizes are left
        out, and at last the sums by Horovod.
    """

    def __init__(self, job: Job, progress: Callable[[str], None] = lambda part: None, seconds: float = SECONDS):
        if job.num_workers < 2:
            raise InputError('calibrate: the job has 1 worker, but at least 2 are needed to measure messages between '
                             'workers: start it on all hosts of the cluster like a training, for example horovodrun '
                             '-np 4 -H hostA:2,hostB:2 mxhybrid calibrate cluster.json')
        hooks.install()  # scripts have done that, the command mxhybrid has not
        self._job, self._report_part = job, progress
        self._workers = worker_group_of(job)
        self._budget = TimeBudget(seconds, SHARES)
        self._meter = CpuMeter(job, self._budget)
        if not self._meter.includes_servers:
            logger.warning('calibrate: rows do not travel by the lane: the CPU time of servers cannot be measured and '
                           'is missing in the costs')
        places = job.topology.memory_domains
        self._redistributions = RedistributionBenchmark(self._workers, self._meter)
        #: Ranks by host.
        self._local = [[rank for rank, other in enumerate(places) if other == place]
                       for place in dict.fromkeys(places)]
        self._everyone = list(range(job.num_workers))
        #: Bytes a second by which sizes are limited.
        self._limit = 1e15
        #: The bytes and the measurement of the largest redistribution in which every rank sends something to every
        #: other one.
        self._all_to_all: Optional[Tuple[int, Measurement]] = None

    def _begin(self, part: str, measurements: int = 1) -> None:
        self._report_part(part)
        self._budget.begin(part, measurements)

    def measure(self) -> Cluster:
        """Measure and return the cluster; speeds are relative to worker 0's core while no other core is busy.

        Raises
        ------
        InputError
            Workers are not numbered host by host; on all workers.
        """
        self._begin('cores')
        hosts, resources = self._hosts()
        speeds = CoreSpeeds(self._job, self._meter, hosts, resources)
        speeds.repeat(SPEED_REPEATS)
        memory_rate = MEMORY_BYTES / speeds.reference()[1]
        #: The share of a core that a rank has.
        self._core = min(min(1.0, host.cores / host.ranks) for host in hosts)
        #: True if a step waits for other workers alone: not for links, and not for the next period of a quota.
        self._waits_for_workers = len(hosts) == 1 and not hosts[0].burst_s
        self._begin('links', 2)
        link, link_latency = self._measure_link([[local[0] for local in self._local]])
        if link is not None:
            self._limit = link.rate / max(map(len, self._local))
        self._begin('memory', 2 * len(REDISTRIBUTION_BYTES))
        local_groups = [local for local in self._local if len(local) > 1]
        memory, memory_latency = self._measure_memory(local_groups, memory_rate)
        self._memory_rate = memory.rate
        if link is None:
            link, link_latency = memory, memory_latency
        self._message_latency = link_latency if len(self._local) > 1 else memory_latency
        costs: Dict[str, TransferCost] = {}
        costs['redistribution'] = self._measure_redistribution()
        costs['group_sum'] = self._measure_group_sum()
        store_costs, network_calls = self._measure_steps()
        costs.update(store_costs)
        costs.update(self._measure_rows())
        costs['row_sum'] = self._measure_row_sum()
        self._begin('transfers at the same time', 2)
        # Once more after some seconds: other programs may have disturbed the first repeats.
        speeds.repeat(LAST_REPEATS)
        reference, _ = speeds.reference()
        hosts = speeds.hosts_with_speeds()
        self._log_speeds(hosts)
        busy = speeds.problem()
        if busy:
            if self._job.rank == 0:
                logger.warning('calibrate: the cluster is busy: %s: the measured times are too long: calibrate again '
                               'when nothing else runs', busy)
            # A wait of several steps has mostly been one for other programs.
            network_calls = dataclasses.replace(network_calls, latency_s=0.0)
        step = costs['step']
        costs['step'] = dataclasses.replace(step, fixed_s=step.fixed_s + network_calls.fixed_s,
                                            per_item_s=step.per_item_s + network_calls.per_item_s,
                                            latency_s=step.latency_s + network_calls.latency_s)
        cluster = Cluster(tuple(hosts), link, link_latency, memory, memory_latency, costs,
                          reference=(reference.dense, reference.convolution, reference.memory), busy=busy)
        self._compare_concurrent_transfers(cluster)
        self._log('calibrated in %.0f s', self._budget.elapsed)
        return cluster

    # -- hosts -----------------------------------------------------------------------------------------------------

    def _hosts(self) -> Tuple[List[Host], List[Dict[str, Any]]]:
        """Return the hosts with their cores and memory, and the findings of each rank."""
        topology = self._job.topology
        resources = self._meter.allgather(local_resources())
        has_hidden_quota = any(local['hidden'] for local in resources)
        self._meter.barrier()
        shares = self._meter.allgather(core_share()) if has_hidden_quota else [1.0] * len(resources)
        return hosts_of(topology.memory_domains, topology.hosts, resources, shares), resources

    def _log_speeds(self, hosts: Sequence[Host]) -> None:
        for host in hosts:
            speeds = ', '.join('%.2f (memory %.2f) with %d busy' % (speed, memory_speed, count) for count, (
                speed, memory_speed) in enumerate(zip(host.speeds, host.memory_speeds), 1))
            self._log('%s: %d ranks on %.3g cores, each %s times as fast as the reference core', host.name, host.ranks,
                      host.cores, speeds or '%.2f' % host.speed)

    # -- links -----------------------------------------------------------------------------------------------------

    def _measure_link(self, groups: List[List[int]]) -> Tuple[Optional[TokenBucket], float]:
        """Return the bucket and the latency of the link between ranks of a group, each of which sends to the next."""
        if len(groups[0]) < 2:
            return None, 0.0
        sizes: List[int] = []
        seconds: List[float] = []
        for size in LINK_BYTES:
            sizes.append(size)
            seconds.append(self._redistributions.after_idle(shifted(groups, 1, size // 4), size))
            if seconds[-1] > LONG_ENOUGH_S:
                break
        bucket, _, errors = fit_bucket(sizes, seconds)
        latency = self._latency(groups)
        self._log('link: %.1f MB/s%s, latency %.0f us; %s', bucket.rate / 1e6,
                  ', after a pause %.0f kB at %.0f MB/s' % (bucket.burst / 1e3, bucket.peak / 1e6) * (
                      bucket.burst > 0), 1e6 * latency, _error_text(errors))
        return bucket, latency

    def _latency(self, groups: List[List[int]]) -> float:
        """Return the seconds of a small redistribution, inside a graph, in which no core computes."""
        size = REDISTRIBUTION_BYTES[0]
        measurement = self._redistributions.per_direction(shifted(groups, 1, size // 4), size)
        # Measurements are averages over all workers; those outside of the groups do nothing.
        return max(0.0, (measurement.elapsed_s - measurement.core_s) * self._workers_per_member(groups))

    def _workers_per_member(self, groups: List[List[int]]) -> float:
        return self._job.num_workers / sum(map(len, groups))

    def _measure_memory(self, groups: List[List[int]], copy_rate: float) -> Tuple[TokenBucket, float]:
        """Return the bucket and the latency between ranks of a host; a core's own copies if no host has two ranks."""
        if not groups:
            return TokenBucket(copy_rate), 0.0
        sizes = [size for size in REDISTRIBUTION_BYTES if size > REDISTRIBUTION_BYTES[0]]
        measurements = [self._redistributions.per_direction(shifted(groups, 1, size // 4), size) for size in sizes]
        idle_s = [max(0.0, measurement.elapsed_s - measurement.core_s) * self._workers_per_member(groups)
                  for measurement in measurements]
        _, seconds_per_byte = least_squares([(1.0, float(size)) for size in sizes], idle_s)
        # At most the rate at which a core copies: the time that is not a core's may be almost 0.
        rate = min(1 / max(float(seconds_per_byte), 1e-15), copy_rate)
        latency = self._latency(groups)
        self._log('memory: %.1f GB/s, latency %.0f us', rate / 1e9, 1e6 * latency)
        return TokenBucket(rate), latency

    # -- redistributions -------------------------------------------------------------------------------------------

    def _groupings(self) -> List[List[List[int]]]:
        """Return the ways to put ranks into groups: neighbours in pairs, and all together."""
        groupings = [[self._everyone[rank:rank + 2] for rank in range(0, len(self._everyone) - 1, 2)]]
        if len(self._everyone) > 2:
            groupings.append([self._everyone])
        return groupings

    def _sizes(self, most: float) -> List[int]:
        """Return the bytes of redistributions up to `most`, and at least the two smallest ones."""
        return [size for size in REDISTRIBUTION_BYTES if size <= max(most, REDISTRIBUTION_BYTES[1])]

    def _in_time(self, items: Sequence[Any], least: int) -> Iterator[Any]:
        """Yield the first `least` items, and more of them as long as there is time (collective)."""
        for number, item in enumerate(items):
            if number >= least and self._meter.is_out_of_time():
                break
            yield item

    def _measure_redistribution(self) -> TransferCost:
        samples, count = [], len(self._everyone)
        shift = max(map(len, self._local)) if len(self._local) > 1 else 1
        sizes = self._sizes(self._limit * REDISTRIBUTION_S)
        self._begin('redistributions', 2 * len(sizes) * (1 + (count > 2)) + 2)
        for size in self._in_time(sizes, LEAST_SIZES):
            measurement = self._redistributions.per_direction(shifted([self._everyone], shift, size // 4), size)
            samples.append(Sample(2, 2 * size, measurement.core_s))
            if count > 2:
                measurement = self._redistributions.per_direction(all_to_all([self._everyone], size // 4), size)
                # A rank copies its own share from one array to the other.
                kept_s = size / count / self._memory_rate
                samples.append(_all_to_all_sample(count, size, max(0.0, measurement.core_s - kept_s)))
                self._all_to_all = size, measurement
        cost = self._fitted('redistribution', samples)
        # Redistributions that follow each other immediately take less time than in a network.
        in_network = self._redistributions.per_direction(shifted([self._everyone], shift, sizes[0] // 4), sizes[0],
                                                         in_network=True)
        more_s = max(0.0, in_network.core_s - samples[0].seconds)
        latency = self._extra_latency(in_network.elapsed_s - in_network.core_s / self._core, 1)
        self._log('redistribution in a network: %.3g ms more, latency %.3g ms', 1e3 * more_s, 1e3 * latency)
        return dataclasses.replace(cost, fixed_s=cost.fixed_s + more_s, latency_s=latency)

    def _measure_group_sum(self) -> TransferCost:
        samples, latencies, eviction = [], [], CacheEviction()
        sizes, groupings = self._sizes(self._limit * REDISTRIBUTION_S), self._groupings()
        self._begin('sums of groups', len(sizes) * len(groupings))
        for size in self._in_time(sizes, LEAST_SIZES):
            for groups in groupings:
                measurement = self._meter.measure(GroupSums(self._workers, groups, size // 4).make, eviction.run)
                # A sum is two redistributions: ranks send each other ranges to sum, then their sums.
                part = self._workers_per_member(groups) / 2
                samples.append(_all_to_all_sample(len(groups[0]), size, measurement.core_s * part))
                latencies.append((measurement.elapsed_s - measurement.core_s) * part)
        return self._fitted('group_sum', samples, self._extra_latency(latencies[0], 1))

    def _extra_latency(self, seconds: float, messages: int) -> float:
        """Return the latency beyond that of the messages, `messages` of which follow one another."""
        return max(0.0, seconds - messages * self._message_latency)

    # -- the store -------------------------------------------------------------------------------------------------

    def _measure_steps(self) -> Tuple[Dict[str, TransferCost], TransferCost]:
        """Return the costs of a Trainer's step, and that of the calls of a network before it."""
        # The bytes of weights that a link sums in time.
        most = min(MOST_BYTES, max(1 << 20, int(self._limit * SUM_S)))
        messages = 2 if len(self._local) > 1 else 1
        summed = [DenseWeights(2 * layers, 256) for layers in LAYERS] + [DenseWeights(8, min(most, 15 << 17) // 8 // 4)]
        summed += [DenseWeights(count, most // count // 4) for count in (2, 32, 8)]
        scripts_s: List[float] = []
        self._begin('steps', 2 * len(OWN_WEIGHTS) + len(summed) + len(LAYERS))
        # Without sums, by weights that each rank has for itself: the cost of a step and of updates.
        readings, measurements = [], []
        for weights in OWN_WEIGHTS:
            steps = TrainerSteps(weights, workers=self._workers)
            for updates in (0, 1):
                measurements.append(self._meter.measure(functools.partial(steps.step, bool(updates)), steps.compute,
                                                        0.4))
                readings.append(StepReading(weights.number, updates * weights.number, updates * weights.size, 0, 0,
                                            measurements[-1].core_s))
        waits = [measurement.elapsed_s - measurement.core_s for measurement in measurements[:2]]
        # The same steps with sums among the workers.
        for weights in self._in_time(summed, LEAST_WEIGHTS):
            steps = TrainerSteps(weights)
            measurement = self._meter.measure(functools.partial(steps.step, True), steps.compute, 0.5)
            if weights is summed[0]:
                waits.append(measurement.elapsed_s - measurement.core_s)
            if len(scripts_s) < len(LAYERS):
                scripts_s.append(measurement.script_s)
            readings.append(StepReading(weights.number, weights.number, weights.size, weights.sums, weights.size,
                                        measurement.core_s))
        fit = fit_steps(readings)
        self._log('step, update and sum: %s', _error_text(fit.errors))
        sum_latency = self._extra_latency(waits[2] - max(0.0, waits[1]), messages)
        calls = self._measure_network_calls(scripts_s)
        if self._waits_for_workers:
            # The sum that ends a step has a latency of its own.
            calls = dataclasses.replace(calls, latency_s=max(
                0.0, self._extra_latency(calls.latency_s, messages) - sum_latency))
            step = fit.step
        else:
            calls = dataclasses.replace(calls, latency_s=0.0)
            step = dataclasses.replace(fit.step, latency_s=max(0.0, waits[1] - waits[0]))
        return {'step': step, 'update': fit.update, 'sum': dataclasses.replace(fit.sum, latency_s=sum_latency)}, calls

    def _measure_network_calls(self, trainers_s: Sequence[float]) -> TransferCost:
        """Return the cost of the calls of a network, forward and backward, by its parameters; it includes the
        additional time of a Trainer's step while the network computes, and the latency of whole steps.

        - `trainers_s`: the seconds of the script for a step of a Trainer with as many weights as the networks have.
        """
        counts, calls_s, waits = [2 * layers for layers in LAYERS], [], []
        for layers, trainer_s in zip(LAYERS, trainers_s):
            steps = ScriptSteps(self._workers, layers)
            measurement = self._meter.measure(functools.partial(steps.run, SCRIPT_STEPS), budget_s=0.6)
            calls_s.append(max(0.0, measurement.script_s / SCRIPT_STEPS - trainer_s))
            waits.append((measurement.elapsed_s - measurement.core_s / self._core) / SCRIPT_STEPS)
        per_parameter_s = max(0.0, (calls_s[1] - calls_s[0]) / (counts[1] - counts[0]))
        fixed_s = max(0.0, calls_s[0] - counts[0] * per_parameter_s)
        latency_s = max(0.0, min(waits))  # other programs can only make a wait longer
        self._log('calls of a network: %.3g ms + %.3g ms/parameter, latency of a step %.3g ms', 1e3 * fixed_s,
                  1e3 * per_parameter_s, 1e3 * latency_s)
        return TransferCost(fixed_s, per_parameter_s, 0.0, latency_s)

    def _measure_rows(self) -> Dict[str, TransferCost]:
        ranks = self._job.num_workers
        most = min(MOST_ROWS, TABLE_ROWS // ranks, max(256, int(self._limit * REDISTRIBUTION_S / ROW_BYTES)))
        counts, all_partitions = (8, most // 8, most), [self._job.num_servers, 4 * self._job.num_servers]
        self._begin('rows', len(all_partitions) * (1 + 2 * len(counts)))
        pushes, pushes_and_pulls, eviction = [], [], CacheEviction()
        waits: List[float] = []
        for partitions in all_partitions:
            table, gradients = TableRows(self._job, partitions), TableSums(self._job, TABLE_ROWS, partitions=partitions)
            pulled = self._meter.measure(table.pull_one, eviction.after(table.push))
            for count in counts:
                table.draw(count)
                gradients.draw(count)
                pushed, summed = (self._meter.measure(action, eviction.run) for action in (
                    table.push, gradients.sum))
                touched = min(partitions, count)
                pushes.append(Sample(touched, count * ROW_BYTES, max(0.0, pushed.core_s - pulled.core_s)))
                pushes_and_pulls.append(Sample(touched, ranks * count * ROW_BYTES, summed.core_s))
                waits += [measurement.elapsed_s - measurement.core_s for measurement in (pushed, pulled, summed)]
        push = self._fitted('push', pushes, self._extra_latency(waits[0] - max(0.0, waits[1]), 1))
        # Workers agree which rows any of them has touched; then they pull these rows.
        pulls = [sample._replace(seconds=max(0.0, sample.seconds - push.seconds(int(sample.items),
                                                                                sample.size / ranks)))
                 for sample in pushes_and_pulls]
        pull = self._fitted('pull', pulls, self._extra_latency(waits[2] - push.latency_s, 3))
        return {'push': push, 'pull': pull}

    def _measure_row_sum(self) -> TransferCost:
        samples, measurements, eviction = [], [], CacheEviction()
        most = min(MOST_BYTES // 2, max(TABLE_BYTES[1], int(self._limit * SUM_S)))
        sizes = [size for size in TABLE_BYTES if size <= most]
        self._begin('sums of rows', len(sizes))
        for size in sizes:
            table = TableSums(self._job, size // ROW_BYTES)
            measurements.append(self._meter.measure(table.sum, eviction.run))
            samples.append(Sample(self._job.num_workers, table.size, measurements[-1].core_s))
        messages = 2 if len(self._local) > 1 else 1
        latency = self._extra_latency(measurements[0].elapsed_s - measurements[0].core_s, messages)
        return self._fitted('row_sum', samples, latency)

    def _fitted(self, kind: str, samples: List[Sample], latency: float = 0.0) -> TransferCost:
        cost, errors = fit_cost(samples, latency)
        self._log('%s: %.3g ms + %.3g ms/item + %.3g ms/MB, latency %.3g ms; %s', kind, 1e3 * cost.fixed_s,
                  1e3 * cost.per_item_s, 1e9 * cost.per_byte_s, 1e3 * cost.latency_s, _error_text(errors))
        return cost

    # -- comparison ------------------------------------------------------------------------------------------------

    def _compare_concurrent_transfers(self, cluster: Cluster) -> None:
        """Log the time of transfers of all ranks at the same time, and the prediction for the link alone."""
        if len(self._local) < 2:
            return
        count = len(self._everyone)
        if self._all_to_all is None:
            size = self._sizes(self._limit * REDISTRIBUTION_S)[-1]
            self._all_to_all = size, self._redistributions.per_direction(all_to_all([self._everyone], size // 4), size)
        size, measurement = self._all_to_all
        leaving_bytes = max(len(local) * (count - len(local)) for local in self._local) * size / count
        steady = TokenBucket(cluster.link.rate)
        predicted_s = float(transfer_seconds(steady, cluster.link_latency_s, np.array(leaving_bytes)))
        self._log('transfers of all ranks at the same time: %.1f kB leave a host in %.1f ms; %.1f ms are predicted '
                  'from the link alone', leaving_bytes / 1e3, 1e3 * measurement.elapsed_s, 1e3 * predicted_s)

    def _log(self, text: str, *args: Any) -> None:
        if self._job.rank == 0:
            logger.info(text, *args)


def _all_to_all_sample(ranks: int, size: int, seconds: float) -> Sample:
    """Return the sample of a redistribution in which each rank sends every other one an equal share of `size` bytes."""
    return Sample(2 * (ranks - 1), 2 * size * (ranks - 1) / ranks, seconds)


def _error_text(errors: np.ndarray) -> str:
    return 'mean error %.0f %%, largest %.0f %%' % (100 * float(np.mean(errors)), 100 * float(np.max(errors)))
