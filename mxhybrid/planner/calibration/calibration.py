"""Measures the cluster that a job runs on: ``mxhybrid calibrate``.

Everything is done as training does it: exchanges of a network that is split, steps of a Trainer, pushes and pulls of a
table, sums of all its rows.  Of each, several sizes are timed on all workers at once; a cost is what makes up the
seconds of cores, and what is left of the clock's seconds is latency.
"""
import dataclasses
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from ...base.log import get_logger
from ...job.job import Job
from ...kvstore import hooks
from ...parallel.redistribution.worker_group import team_of
from ..cluster.cluster_spec import Cluster, Host, TransferCost
from ..simulator.token_bucket import Bucket
from .core_speeds import CoreSpeeds
from .cost_fitting import Sample, fit_bucket, fit_cost, least_squares, relative_errors, transfer_seconds
from .cpu_meter import CpuMeter, Measurement
from .exchange_benchmark import ExchangeBenchmark
from .exchange_workload import GroupSums, all_to_all, shifted
from .horovod_benchmark import HorovodBenchmark
from .host_resources import core_share, hosts_of, local_resources
from .table_benchmark import ROW_BYTES, TABLE_ROWS, TableRows, TableSums, partitions_to_try
from .time_budget import TimeBudget
from .trainer_benchmark import DenseWeights, ScriptSteps, TrainerSteps

logger = get_logger(__name__)

#: Bytes of transfers after idleness; no larger ones when one has taken so many seconds.
WAY_BYTES = tuple(1 << at for at in range(12, 24))
LONG_ENOUGH_S = 0.15
#: Bytes that a rank gives in an exchange, or has in a sum over a group.
EXCHANGE_BYTES = (1 << 10, 1 << 15, 1 << 18, 1 << 20)
#: Passes over memory that a network makes before a step.
PASSES = 6
#: Most bytes of weights, and rows of a worker; less where a link would take longer than so many seconds.
MOST_BYTES, MOST_ROWS, SUM_S, EXCHANGE_S = 16 << 20, 8192, 0.15, 0.05
#: Weights of which each rank has its own.  The large ones are as large as those that are summed: updates of 2 MB take
#: half as long again for each byte, and what they take too long, sums would take too little.
OWN_WEIGHTS = (DenseWeights(2, 256), DenseWeights(64, 256), DenseWeights(2, 1 << 20), DenseWeights(2, 1 << 21))
#: Of tables whose rows are summed by allreduce.
TABLE_BYTES = (1 << 16, 1 << 19, 1 << 21, 1 << 23)
#: Repeats of the reference pieces, first and last.
SPEED_REPEATS, LAST_REPEATS = 4, 2
#: Sizes of exchanges, and kinds of weights, that are measured also where time is up.
LEAST_SIZES, LEAST_WEIGHTS = 3, 5
#: Seconds that it may take, and which part of them each kind has.
SECONDS = 41.0
SHARES = {'cores': 4.0, 'links': 5.0, 'memory': 2.0, 'exchanges': 7.0, 'sums of groups': 2.5, 'steps': 11.0,
          'rows': 3.5, 'sums of rows': 2.0, 'sums by Horovod': 6.0, 'transfers at the same time': 0.5}


class Calibration:
    """A measurement of a job's cluster (collective).

    Parameters
    ----------
    job : Job
        Of at least two workers.
    progress : callable, optional
        Is told what is measured next.
    seconds : float, optional
        That it may take: where time is short transfers are made less often, twice at least, and a few sizes not at all,
        and in the end no sums by Horovod.
    """

    def __init__(self, job: Job, progress: Callable[[str], None] = lambda what: None, seconds: float = SECONDS):
        if job.num_workers < 2:
            raise InputError('calibrate: there is one worker: start it on all hosts of the cluster as a training is '
                             'started, for example horovodrun -np 4 -H hostA:2,hostB:2 mxhybrid calibrate cluster.json')
        hooks.install()  # which the command mxhybrid, other than a script, has not done
        self._job, self._tell = job, progress
        self._team = team_of(job)
        self._budget = TimeBudget(seconds, SHARES)
        self._meter = CpuMeter(job, self._budget)
        if not self._meter.includes_servers:
            logger.warning('what servers compute is not seen, and not part of the costs: rows do not travel by the '
                           'lane')
        places = job.topology.memory_domains
        self._exchanges = ExchangeBenchmark(job, self._team, self._meter)
        #: Ranks by host.
        self._local = [[rank for rank, other in enumerate(places) if other == place]
                       for place in dict.fromkeys(places)]
        self._everyone = list(range(job.num_workers))
        #: Words for other programs that were noticed; empty where there were none.
        self.problem = ''
        #: Bytes a second that limit sizes.
        self._limit = 1e15
        #: The largest exchange in which every rank gives every other one something, and its bytes.
        self._together: Optional[Tuple[int, Measurement]] = None

    def _progress(self, part: str, measurements: int = 1) -> None:
        self._tell(part)
        self._budget.begin(part, measurements)

    def measure(self) -> Cluster:
        """The cluster; speeds are beside worker 0's core while nobody else computes.

        Raises
        ------
        InputError
            Workers that are not numbered host by host; on all workers.
        """
        self._progress('cores')
        hosts, found = self._hosts()
        speeds = CoreSpeeds(self._job, self._meter, hosts, found)
        speeds.repeat(SPEED_REPEATS)
        # The reference pass reads two arrays of 16 MB and writes one.
        memory_rate = 3 * (16 << 20) / speeds.speeds()[2]
        #: Of a core that a rank has.
        self._core = min(min(1.0, host.cores / host.ranks) for host in hosts)
        self._progress('links', 2)
        link, link_latency = self._way([[local[0] for local in self._local]], 'link')
        if link is not None:
            self._limit = link.rate / max(map(len, self._local))
        self._progress('memory', 2 * len(EXCHANGE_BYTES))
        pairs = [local for local in self._local if len(local) > 1]
        memory, memory_latency = self._memory(pairs, memory_rate)
        if link is None:
            link, link_latency = memory, memory_latency
        self._hop = link_latency if len(self._local) > 1 else memory_latency
        costs: Dict[str, TransferCost] = {}
        costs['exchange'] = self._exchange()
        costs['group_sum'] = self._group_sum()
        costs.update(self._steps())
        costs.update(self._rows())
        costs['row_sum'] = self._row_sum()
        if HorovodBenchmark.is_possible(self._job):
            costs.update(self._horovod_sums(costs['step'], costs['update']))
        self._progress('transfers at the same time', 2)
        # Some seconds later, since other programs may have disturbed the first repeats.
        speeds.repeat(LAST_REPEATS)
        reference, by_host, _ = speeds.speeds()
        hosts = [dataclasses.replace(host, speed=several[-1], speeds=several if len(several) > 1 else ())
                 for host, several in zip(hosts, by_host)]
        self._tell_of_speeds(hosts)
        self.problem = speeds.problem()
        if self.problem and self._job.rank == 0:
            logger.warning('calibrate: the cluster is busy: %s: figures are too large: calibrate again when nothing '
                           'else runs', self.problem)
        cluster = Cluster(tuple(hosts), link, link_latency, memory, memory_latency, costs,
                          reference=(reference.dense, reference.convolution, reference.memory))
        self._overlap(cluster)
        self._log('calibrated in %.0f s', self._budget.elapsed)
        return cluster

    # -- hosts -----------------------------------------------------------------------------------------------------

    def _hosts(self) -> Tuple[List[Host], List[Dict[str, Any]]]:
        """Hosts with their cores and memory, and what each rank has found."""
        topology = self._job.topology
        found = self._meter.allgather(local_resources())
        hidden = any(one['hidden'] for one in found)
        self._meter.barrier()
        shares = self._meter.allgather(core_share()) if hidden else [1.0] * len(found)
        return hosts_of(topology.memory_domains, topology.hosts, found, [1.0] * len(found), shares), found

    def _tell_of_speeds(self, hosts: Sequence[Host]) -> None:
        for host in hosts:
            self._log('%s: %d ranks on %.3g cores, %s times as fast as the core of worker 0 alone', host.name,
                      host.ranks, host.cores, ', '.join(
                          '%.2f' % speed + (' with %d busy' % count) * (len(host.speeds) > 1)
                          for count, speed in enumerate(host.speeds or (host.speed,), 1)))

    # -- ways ------------------------------------------------------------------------------------------------------

    def _way(self, groups: List[List[int]], name: str) -> Tuple[Optional[Bucket], float]:
        """Bucket and latency of the way between the ranks of a group, each of which gives to the next one."""
        if len(groups[0]) < 2:
            return None, 0.0
        sizes: List[int] = []
        seconds: List[float] = []
        for size in WAY_BYTES:
            sizes.append(size)
            seconds.append(self._exchanges.after_idle(lambda columns: shifted(groups, 1, columns), size))
            if seconds[-1] > LONG_ENOUGH_S:
                break
        bucket, _, left = fit_bucket(sizes, seconds)
        latency = self._latency(groups)
        self._log('%s: %.1f MB/s%s, latency %.0f us; %s', name, bucket.rate / 1e6,
                  ', after idleness %.0f kB at %.0f MB/s' % (bucket.burst / 1e3, bucket.peak / 1e6) * (
                      bucket.burst > 0), 1e6 * latency, _left(left))
        return bucket, latency

    def _latency(self, groups: List[List[int]]) -> float:
        """Seconds of a small exchange, in a graph, in which nobody computes."""
        taken = self._exchanges.per_exchange(lambda columns: shifted(groups, 1, columns), EXCHANGE_BYTES[0])
        # Who has no part in it computes nothing.
        part = self._job.num_workers / sum(map(len, groups))
        return max(0.0, (taken.elapsed_s - taken.core_s) * part)

    def _memory(self, pairs: List[List[int]], copied: float) -> Tuple[Bucket, float]:
        """Between ranks of a host; a core's own copies, where no host has two of them."""
        if not pairs:
            return Bucket(copied), 0.0
        sizes = [size for size in EXCHANGE_BYTES if size > EXCHANGE_BYTES[0]]
        part = self._job.num_workers / sum(map(len, pairs))
        taken = [self._exchanges.per_exchange(lambda columns: shifted(pairs, 1, columns), size) for size in sizes]
        left = [max(0.0, one.elapsed_s - one.core_s) * part for one in taken]
        _, slope = least_squares([(1.0, float(size)) for size in sizes], left)
        # No faster than a core copies: what is left beside the seconds of cores may be next to nothing.
        rate = min(1 / max(float(slope), 1e-15), copied)
        latency = self._latency(pairs)
        self._log('memory: %.1f GB/s, latency %.0f us', rate / 1e9, 1e6 * latency)
        return Bucket(rate), latency

    # -- exchanges -------------------------------------------------------------------------------------------------

    def _groups(self) -> List[List[List[int]]]:
        """Ways to put ranks into groups: neighbours in pairs, and all together."""
        found = [[self._everyone[at:at + 2] for at in range(0, len(self._everyone) - 1, 2)]]
        if len(self._everyone) > 2:
            found.append([self._everyone])
        return found

    def _sizes(self, most: float) -> List[int]:
        """Bytes of exchanges that a link takes in time."""
        return [size for size in EXCHANGE_BYTES if size <= max(most, EXCHANGE_BYTES[1])]

    def _in_time(self, all_of_them: Sequence[Any], least: int) -> Iterator[Any]:
        """One after the other, as long as there is time (collective)."""
        for number, one in enumerate(all_of_them):
            if number >= least and self._meter.is_out_of_time():
                break
            yield one

    def _exchange(self) -> TransferCost:
        samples, count = [], len(self._everyone)
        shift = max(map(len, self._local)) if len(self._local) > 1 else 1
        sizes = self._sizes(self._limit * EXCHANGE_S)
        self._progress('exchanges', 2 * len(sizes) * (1 + (count > 2)) + 2)
        for size in self._in_time(sizes, LEAST_SIZES):
            taken = self._exchanges.per_exchange(lambda columns: shifted([self._everyone], shift, columns), size)
            samples.append(Sample(2, 2 * size, taken.core_s))
            if count > 2:
                taken = self._exchanges.per_exchange(lambda columns: all_to_all([self._everyone], columns), size)
                samples.append(_among(count, size, taken.core_s))
                self._together = size, taken
        cost = self._fitted('exchange', samples)
        # One right behind the other they take less than in a network.
        apart = self._exchanges.per_exchange(lambda columns: shifted([self._everyone], shift, columns), sizes[0], True)
        more = max(0.0, apart.core_s - samples[0].seconds)
        latency = self._beyond(apart.elapsed_s - apart.core_s / self._core, 1)
        self._log('exchange in a network: %.3g ms more, latency %.3g ms', 1e3 * more, 1e3 * latency)
        return dataclasses.replace(cost, fixed_s=cost.fixed_s + more, latency_s=latency)

    def _group_sum(self) -> TransferCost:
        samples, latencies = [], []
        sizes, all_groups = self._sizes(self._limit * EXCHANGE_S), self._groups()
        self._progress('sums of groups', len(sizes) * len(all_groups))
        for size in self._in_time(sizes, LEAST_SIZES):
            for groups in all_groups:
                taken = self._meter.measure(GroupSums(self._team, groups, size // 4).make)
                # It is two exchanges: ranks give each other ranges to sum, then their sums.
                part = self._job.num_workers / sum(map(len, groups)) / 2
                samples.append(_among(len(groups[0]), size, taken.core_s * part))
                latencies.append((taken.elapsed_s - taken.core_s) * part)
        return self._fitted('group_sum', samples, self._beyond(latencies[0], 1))

    def _beyond(self, seconds: float, hops: int) -> float:
        """Latency beside that of messages, of which `hops` follow one another."""
        return max(0.0, seconds - hops * self._hop)

    # -- the store -------------------------------------------------------------------------------------------------

    def _steps(self) -> Dict[str, TransferCost]:
        most, hops = self._most_bytes(), 2 if len(self._local) > 1 else 1
        several = [DenseWeights(2, 256), DenseWeights(64, 256), DenseWeights(8, min(most, 15 << 17) // 8 // 4)]
        several += [DenseWeights(count, most // count // 4) for count in (2, 32, 8)]
        self._progress('steps', 2 * len(OWN_WEIGHTS) + len(several) + 2)
        # Without sums, of weights that each rank has for itself: what a step and updates take.
        rows, taken = [], []
        for weights in OWN_WEIGHTS:
            steps = TrainerSteps(weights, team=self._team)
            for updates in (0, 1):
                taken.append(self._meter.measure(functools.partial(steps.step, bool(updates)), steps.compute, 0.4))
                rows.append((1.0, weights.number, updates * weights.number, updates * weights.size))
        seconds = [one.core_s for one in taken]
        made = [float(one) for one in least_squares(rows, seconds)]
        self._log('step and update: %s', _left(relative_errors(rows, seconds, made)))
        waits = [one.elapsed_s - one.core_s for one in taken[:2]]
        step = TransferCost(made[0], made[1], 0.0, max(0.0, waits[1] - waits[0]))
        update = TransferCost(0.0, made[2], made[3])
        # With sums; what is more than that is theirs.
        sums: List[Tuple[float, float]] = []
        seconds = []
        for weights in self._in_time(several, LEAST_WEIGHTS):
            steps = TrainerSteps(weights)
            taken.append(self._meter.measure(functools.partial(steps.step, True), steps.compute, 0.5))
            if not sums:
                waits.append(taken[-1].elapsed_s - taken[-1].core_s)
                scripts = [self._meter.measure(ScriptSteps(self._team, weights, passes).step, None, 0.4)
                           for passes in (0, PASSES)]
                script = scripts[0].core_s - taken[-1].core_s
            sums.append((float(weights.sums), float(weights.size)))
            seconds.append(taken[-1].core_s - step.seconds(weights.number, 0)
                           - update.seconds(weights.number, weights.size))
        made = [float(one) for one in least_squares(sums, seconds)]
        self._log('sum: %s', _left(relative_errors(sums, seconds, made)))
        # Calls of a network, forward and backward, come before each step; and its values take the script's out of
        # caches.
        more = max(0.0, scripts[1].script_s - scripts[0].script_s)
        self._log('step behind a network: %.3g ms more', 1e3 * more)
        return {'step': dataclasses.replace(step, fixed_s=step.fixed_s + max(0.0, script) + more), 'update': update,
                'sum': TransferCost(made[0], 0.0, made[1], self._beyond(waits[2] - max(0.0, waits[1]), hops))}

    def _rows(self) -> Dict[str, TransferCost]:
        ranks = self._job.num_workers
        most = min(MOST_ROWS, TABLE_ROWS // ranks, max(256, int(self._limit * EXCHANGE_S / ROW_BYTES)))
        counts, all_partitions = (8, most // 8, most), partitions_to_try(self._job.num_servers)
        self._progress('rows', len(all_partitions) * (1 + 2 * len(counts)))
        pushes, both = [], []
        waits: List[float] = []
        for partitions in all_partitions:
            table, gradients = TableRows(self._job, partitions), TableSums(self._job, TABLE_ROWS, partitions=partitions)
            pulled = self._meter.measure(table.pull_one, table.push)
            for count in counts:
                table.draw(count)
                gradients.draw(count)
                pushed, summed = self._meter.measure(table.push), self._meter.measure(gradients.sum)
                touched = min(partitions, count)
                pushes.append(Sample(touched, count * ROW_BYTES, max(0.0, pushed.core_s - pulled.core_s)))
                both.append(Sample(touched, ranks * count * ROW_BYTES, summed.core_s))
                waits += [one.elapsed_s - one.core_s for one in (pushed, pulled, summed)]
        push = self._fitted('push', pushes, self._beyond(waits[0] - max(0.0, waits[1]), 1))
        # Rows that anyone has touched come back, after workers have told each other which ones these are.
        pulls = [one._replace(seconds=max(0.0, one.seconds - push.seconds(int(one.items), one.size / ranks)))
                 for one in both]
        return {'push': push, 'pull': self._fitted('pull', pulls, self._beyond(waits[2] - push.latency_s, 3))}

    def _most_bytes(self) -> int:
        """Of weights whose sums a link makes in time."""
        return min(MOST_BYTES, max(1 << 20, int(self._limit * SUM_S)))

    def _table_sizes(self) -> List[int]:
        most = min(MOST_BYTES // 2, max(TABLE_BYTES[1], int(self._limit * SUM_S)))
        return [size for size in TABLE_BYTES if size <= most]

    def _row_sum(self) -> TransferCost:
        samples, taken = [], []
        sizes = self._table_sizes()
        self._progress('sums of rows', len(sizes))
        for size in sizes:
            table = TableSums(self._job, size // ROW_BYTES)
            taken.append(self._meter.measure(table.sum))
            samples.append(Sample(self._job.num_workers, table.size, taken[-1].core_s))
        return self._fitted('row_sum', samples, self._beyond(taken[0].elapsed_s - taken[0].core_s,
                                                             2 if len(self._local) > 1 else 1))

    def _horovod_sums(self, step: TransferCost, update: TransferCost) -> Dict[str, TransferCost]:
        most = self._most_bytes()
        weights = [DenseWeights(2, 256), DenseWeights(64, 256), DenseWeights(8, most // 8 // 4)]
        sums = HorovodBenchmark(self._job, self._meter, weights,
                                [size // ROW_BYTES for size in self._table_sizes()[::2]])
        self._progress('sums by Horovod', sums.measurements)
        if self._meter.is_out_of_time():
            self._log('sums by Horovod are not measured, since time is up: what sums is not chosen by plans then')
            return {}
        return sums.costs(step, update, lambda seconds: self._beyond(seconds, 2 if len(self._local) > 1 else 1),
                          lambda kind, left: self._log('%s: %s', kind, _left(left)))

    def _fitted(self, kind: str, samples: List[Sample], latency: float = 0.0) -> TransferCost:
        cost, left = fit_cost(samples, latency)
        self._log('%s: %.3g ms, %.3g ms an item, %.3g ms/MB, latency %.3g ms; %s', kind, 1e3 * cost.fixed_s,
                  1e3 * cost.per_item_s, 1e9 * cost.per_byte_s, 1e3 * cost.latency_s, _left(left))
        return cost

    # -- a look back -----------------------------------------------------------------------------------------------

    def _overlap(self, cluster: Cluster) -> None:
        """Compare what transfers of all ranks at the same time take with what the links make of them."""
        if len(self._local) < 2:
            return
        count = len(self._everyone)
        if self._together is None:
            size = self._sizes(self._limit * EXCHANGE_S)[-1]
            self._together = size, self._exchanges.per_exchange(
                lambda columns: all_to_all([self._everyone], columns), size)
        size, taken = self._together
        most = max(len(local) * (count - len(local)) for local in self._local)
        leaving = most * size / count
        steady = Bucket(cluster.link.rate)
        expected = float(transfer_seconds(steady, cluster.link_latency_s, np.array(leaving)))
        self._log('transfers of all ranks at the same time: %.1f kB leave a host in %.1f ms, the link alone makes it '
                  '%.1f ms', leaving / 1e3, 1e3 * taken.elapsed_s, 1e3 * expected)

    def _log(self, text: str, *args: Any) -> None:
        if self._job.rank == 0:
            logger.info(text, *args)


def _among(ranks: int, size: int, seconds: float) -> Sample:
    """Of an exchange in which each rank gives every other one a share of so many bytes."""
    return Sample(2 * (ranks - 1), 2 * size * (ranks - 1) / ranks, seconds)


def _left(left: np.ndarray) -> str:
    return 'off by %.0f %% on average, %.0f %% at most' % (100 * float(np.mean(left)), 100 * float(np.max(left)))
