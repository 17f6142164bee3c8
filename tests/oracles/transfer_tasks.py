"""The tasks of transfers, in Python: ``src/transfer_tasks.cc`` makes the same tasks, to the last bit, and faster."""
import numpy as np

from mxhybrid.parallel.sharding.box import overlap, size_of
from mxhybrid.planner.simulator.task_block import TASK
from mxhybrid.planner.task_graph.redistribution import Transfers
from mxhybrid.planner.task_graph.task_builder import Endpoints, TaskBuilder

from .redistribution import find_coverage, find_transfers, reversed_transfers


class RedistributionBuilder(TaskBuilder):
    """A builder of tasks that also adds the tasks of redistributions."""

    def __init__(self, machine):
        super().__init__(machine)
        self._high_priority = {}

    def subgraph(self, first, last):
        """Return the subgraph of the tasks, with their priorities."""
        subgraph = super().subgraph(first, last)
        subgraph.content.tasks['high_priority'][list(self._high_priority)] = list(self._high_priority.values())
        return subgraph

    def add(self, kind, rank, resource, work, second=-1, latency=0.0, high_priority=False, after=()):
        """Add a task that comes after some others; return its number."""
        task = super().add(kind, rank, resource, work, second, latency, after)
        self._high_priority[task] = high_priority
        return task

    def compute(self, kind, rank, seconds, after=()):
        """Add a task of a rank's core, given its duration on the core that operators were timed on."""
        return self.add(kind, rank, int(self.machine.core[rank]), seconds / float(self.machine.speed[rank]),
                        after=after)

    def redistribute(self, transfers, itemsize, senders, receivers, cost='redistribution', kind='redistribution',
                     high_priority=True, own_elements=None, before_s=None, after_s=None):
        """Add the tasks of a redistribution; return the tasks of senders, and those of receivers, by rank.

        The arguments have by rank: the task, or None, that the first task of a sender or a receiver comes after; the
        elements that a receiver takes from its own array; and the seconds of a core for which senders compute first,
        and receivers last.
        """
        machine, ranks = self.machine, self.machine.ranks
        transfer_cost, size_bytes = machine.cluster.costs[cost], transfers.elements * itemsize

        def seconds(ranks_of_messages):
            return (transfer_cost.fixed_s / 2 + transfer_cost.per_item_s * np.bincount(ranks_of_messages, None, ranks)
                    + transfer_cost.per_byte_s * np.bincount(ranks_of_messages, size_bytes, ranks))
        send_s, receive_s = seconds(transfers.sources), seconds(transfers.targets)
        for rank, elements in (own_elements or {}).items():
            receive_s[rank] += elements * itemsize / machine.cluster.memory.rate
        send_s, receive_s = send_s * machine.shared, receive_s * machine.shared
        send_s += 0.0 if before_s is None else before_s
        receive_s += 0.0 if after_s is None else after_s
        send = {rank: self.add(kind, rank, int(machine.core[rank]), send_s[rank], latency=transfer_cost.latency_s,
                               after=() if before is None else (before,)) for rank, before in senders.items()}
        receive = {rank: self.add(kind, rank, int(machine.core[rank]), receive_s[rank], after=[
            task for task in (before, send.get(rank)) if task is not None]) for rank, before in receivers.items()}
        if len(transfers) > 8 * ranks:
            self._move_by_hosts(transfers, size_bytes, send, receive, kind, high_priority)
        else:
            self._move(transfers, size_bytes, send, receive, kind, high_priority)
        return send, receive

    def _move(self, transfers, size_bytes, send, receive, kind, high_priority):
        """Add a task for each message within a host, and one on each of both links for each message between hosts."""
        machine, cluster = self.machine, self.machine.cluster
        # Senders begin with the next rank each.
        order = np.lexsort((transfers.sources, (transfers.targets - transfers.sources) % machine.ranks))
        for source, target, size in zip(transfers.sources[order].tolist(), transfers.targets[order].tolist(),
                                        size_bytes[order].tolist()):
            source_host, target_host = int(machine.host[source]), int(machine.host[target])
            if source_host == target_host:
                tasks = [self.add(kind, source, -1, 0.0, after=[send[source]],
                                  latency=cluster.memory_latency_s + size / cluster.memory.rate)]
            else:
                links = (source, machine.up[source_host]), (target, machine.down[target_host])
                tasks = [self.add(kind, rank, int(link), size, -1, cluster.link_latency_s, high_priority,
                                  [send[source]]) for rank, link in links]
            self.edges += [(task, receive[target]) for task in tasks]

    def _move_by_hosts(self, transfers, size_bytes, send, receive, kind, high_priority):
        """Add one task for all messages that a host sends, one for those that it receives, one for those within it."""
        machine, cluster = self.machine, self.machine.cluster
        source_hosts, target_hosts = machine.host[transfers.sources], machine.host[transfers.targets]
        is_remote = source_hosts != target_hosts
        inside = np.bincount(source_hosts[~is_remote], size_bytes[~is_remote], machine.hosts)
        sent = np.bincount(source_hosts[is_remote], size_bytes[is_remote], machine.hosts)
        received = np.bincount(target_hosts[is_remote], size_bytes[is_remote], machine.hosts)
        all_sent, all_arrived = self.add(kind, -1, -1, 0.0), self.add(kind, -1, -1, 0.0)
        for host in range(machine.hosts):
            before = [send[rank] for rank in sorted(set(transfers.sources[source_hosts == host].tolist()))]
            after = [receive[rank] for rank in sorted(set(transfers.targets[target_hosts == host].tolist()))]
            if sent[host]:
                task = self.add(kind, -1, int(machine.up[host]), float(sent[host]), -1, cluster.link_latency_s,
                                high_priority, before)
                self.edges += [(sender, all_sent) for sender in before] + [(task, all_arrived)]
            if inside[host]:
                task = self.add(kind, -1, -1, 0.0, after=before,
                                latency=cluster.memory_latency_s + float(inside[host]) / cluster.memory.rate)
                self.edges += [(task, receiver) for receiver in after]
            if received[host]:
                task = self.add(kind, -1, int(machine.down[host]), float(received[host]), -1, cluster.link_latency_s,
                                high_priority, [all_sent])
                self.edges += [edge for receiver in after for edge in ((task, receiver), (all_arrived, receiver))]


class PythonTransferTasks:
    """A builder with the methods of :class:`mxhybrid.planner.task_graph.transfer_tasks.TransferTasks`."""

    def __init__(self, machine):
        self._machine = machine

    coverage = staticmethod(find_coverage)
    transfers = staticmethod(find_transfers)

    def redistributions(self, units, itemsize, back):
        """Return the tasks of redistributions that run side by side, or with `back` of their gradients."""
        tasks, first, last = RedistributionBuilder(self._machine), [], []
        for number, unit in units:
            between = [] if unit.pieces is None else [unit.pieces.ranks]
            ranks = [unit.held.ranks, *between, unit.needed.ranks]
            steps = [unit.transfers] + [unit.gathered] * len(between)
            boxes = [rank_boxes.by_rank for rank_boxes in [unit.held] + [unit.pieces] * len(between) + [unit.needed]]
            own_elements = [{rank: size_of(overlap(box, needed[rank])) for rank, box in held.items()
                             if rank in needed and overlap(box, needed[rank]) is not None}
                            for held, needed in zip(boxes, boxes[1:])]
            seconds = [None] * 2 if unit.conversions is None else list(unit.conversions)
            if back:
                gives = [*between, unit.gradient_ranks]
                steps = [reversed_transfers(transfers, givers) for transfers, givers in zip(steps, gives)][::-1]
                ranks = [unit.gradient_ranks, *between, unit.held.ranks]
                own_elements[-1] = {rank: elements for rank, elements in own_elements[-1].items()
                                    if rank in unit.gradient_ranks}
                own_elements, seconds = own_elements[::-1], seconds[::-1]
            before = dict.fromkeys(ranks[0].tolist())
            for step, (transfers, receivers) in enumerate(zip(steps, ranks[1:])):
                send, receive = tasks.redistribute(transfers, itemsize, before, dict.fromkeys(receivers.tolist()),
                                               own_elements=own_elements[step],
                                               before_s=seconds[0] if step == 0 else None,
                                               after_s=seconds[1] if step == len(steps) - 1 else None)
                if step == 0:
                    first += [(number, rank, task) for rank, task in send.items()]
                before = receive
            last += [(number, rank, task) for rank, task in receive.items()]
        return tasks.subgraph(*(Endpoints(*np.array(rows, np.int32).reshape(-1, 3).T) for rows in (first, last)))

    def load(self, contents):
        """Return the work of each resource, without high-priority tasks."""
        count = len(self._machine.resources)
        tasks = np.concatenate([np.empty(0, TASK), *(content.tasks for content in contents)])
        tasks = tasks[tasks['high_priority'] == 0]
        resources = np.stack([tasks['resource'], tasks['second']], axis=1) + 1
        return np.bincount(resources.reshape(-1), tasks['work'].repeat(2), count + 1)[1:]

    def collective_operator(self, kind, ranks, before, after, between, itemsize):
        """Return the tasks of an operator whose shards, on `ranks`, compute, exchange data, and compute again."""
        tasks = RedistributionBuilder(self._machine)
        first = {rank: tasks.compute(kind, rank, seconds) for rank, seconds in zip(ranks.tolist(), before.tolist())}
        _, receive = tasks.redistribute(between, itemsize, first, dict(first))
        last = {rank: tasks.compute(kind, rank, seconds, [receive[rank]])
                for rank, seconds in zip(ranks.tolist(), after.tolist())}
        return tasks.subgraph(Endpoints.by_rank(first), Endpoints.by_rank(last))

    def group_sums(self, held, itemsize):
        """Return the tasks that sum gradients among ranks with the same box, in two halves, and update weights."""
        costs, tasks = self._machine.cluster.costs, RedistributionBuilder(self._machine)
        groups = {}
        for rank, box in held.by_rank.items():
            groups.setdefault(box, []).append(rank)
        first, last = {}, {}
        for box, ranks in groups.items():
            size_bytes = size_of(box) * itemsize
            before = {rank: [] for rank in ranks}
            if len(ranks) > 1:
                pairs = [(source, target) for source in ranks for target in ranks if source != target]
                transfers = Transfers(np.array([source for source, _ in pairs]),
                                      np.array([target for _, target in pairs]),
                                      np.full(len(pairs), size_of(box) // len(ranks)))
                send, receive = tasks.redistribute(transfers, itemsize, dict.fromkeys(ranks), dict.fromkeys(ranks),
                                               'group_sum', 'sum', False)
                _, gathered = tasks.redistribute(transfers, itemsize, dict(receive), dict(receive), 'group_sum', 'sum',
                                             False)
                first.update(send)
                before = {rank: [task] for rank, task in gathered.items()}
            for rank in ranks:
                last[rank] = tasks.spend('update', rank, costs['update'].seconds(1, size_bytes), after=before[rank])
                first.setdefault(rank, last[rank])
        return tasks.subgraph(Endpoints.by_rank(first), Endpoints.by_rank(last))
