"""The trace of a whole job, and metrics of its steps."""
import collections
import json

import pytest
from lab.jobs import run_job, start_job

from ..faults import BODIES as FAULT_BODIES
from . import BODIES

BODY = BODIES / 'traced.py'
FAULTS = FAULT_BODIES / 'faults.py'
STEPS, PARTITIONS = 6, 3
WORDS, BINS, DENSE = 'net_words_weight', 'bins_weight', ('net_out_weight', 'net_out_bias')

#: Rounding of microseconds to JSON numbers.
ROUNDING = 0.01


class Trace:
    """The events of a trace file by process."""

    def __init__(self, path):
        self.events = json.loads(path.read_text())
        names = {event['pid']: event['args']['name'] for event in self.events if event['name'] == 'process_name'}
        self.processes = collections.defaultdict(list)
        for event in self.events:
            self.processes[names[event['pid']].partition(' (host ')[0]].append(event)

    def spans(self, process, start):
        """Return the spans of a process whose names begin with `start`, in order."""
        return sorted((event for event in self.processes[process]
                       if event['ph'] == 'X' and event['name'].startswith(start)), key=lambda event: event['ts'])

    def check_form(self):
        """Check Chrome's rules: entries of each phase; spans of a thread nest, operations end after they begin."""
        for event in self.events:
            assert {'ph', 'name', 'ts', 'pid', 'tid'} <= set(event) and event['ts'] >= 0
            assert event['ph'] in 'XMbei' and (event['ph'] != 'X' or event['dur'] >= 0)
        for events in self.processes.values():
            threads = collections.defaultdict(list)
            for event in events:
                if event['ph'] == 'X':
                    threads[event['tid']].append((event['ts'], -event['dur'], event['name']))
            for spans in threads.values():
                open_until = [float('inf')]
                for begin, negative, name in sorted(spans):
                    while begin >= open_until[-1] - ROUNDING:
                        open_until.pop()
                    assert begin - negative <= open_until[-1] + ROUNDING, name
                    open_until.append(begin - negative)
            begins = {event['id2']['local']: event for event in events if event['ph'] == 'b'}
            for event in events:
                if event['ph'] == 'e':
                    begun = begins.pop(event['id2']['local'])
                    assert begun['name'] == event['name'] and begun['ts'] <= event['ts']
            assert not begins  # of a job that ended well


def end(event):
    """Return the end of a span."""
    return event['ts'] + event['dur']


@pytest.mark.parametrize('launcher, servers', [('horovodrun', 1), ('launch.py', 2)])
def test_a_whole_job(tmp_path, launcher, servers):
    metrics = tmp_path / 'steps.jsonl'
    result = run_job(BODY, launcher, workers=2, servers=servers, timeout=90, env={
        'MXHYBRID_TRACE': tmp_path / 'job.json', 'MXHYBRID_METRICS': metrics, 'MXHYBRID_ON_DEMAND_ROWS': '0'}).ok()
    trace = Trace(tmp_path / 'job.json')
    assert sorted(trace.processes) == sorted(['worker 0', 'worker 1'] + ['server %d' % i for i in range(servers)])
    trace.check_form()
    workers = ['worker 0', 'worker 1']
    pushes = {}
    for rank, worker in enumerate(workers):
        steps = trace.spans(worker, 'step ')
        assert [step['name'] for step in steps] == ['step %d' % number for number in range(1, STEPS + 1)]
        gaps = trace.spans(worker, 'forward/backward')
        assert len(gaps) == STEPS
        for gap, step in zip(gaps, steps):
            assert abs(end(gap) - step['ts']) < ROUNDING
        for name in (WORDS, BINS):
            pushes[worker, name] = trace.spans(worker, 'push ' + name)
            assert len(pushes[worker, name]) == STEPS
            for push, step in zip(pushes[worker, name], steps):
                assert step['ts'] <= push['ts'] and end(push) <= end(step) + ROUNDING
                assert push['args']['step'] == step['args']['step']
            kind, rows, pushed, _ = result.results[rank]['traffic'][name]
            assert sum(push['args']['rows'] for push in pushes[worker, name]) == rows
            assert sum(push['args']['pushed'] for push in pushes[worker, name]) == pushed
            assert {push['args']['route'] for push in pushes[worker, name]} == {kind}
        assert len(trace.spans(worker, 'row_sparse_pull ' + WORDS)) == STEPS
        # Dense gradients are handed over together.
        sums = [event['name'] for event in trace.processes[worker]
                if event['ph'] == 'b' and event['name'].startswith('allreduce')]
        assert len([name for name in sums if name.endswith('.bucket0.0')]) == STEPS
        assert len(trace.spans(worker, 'pushpull %d parameters' % len(DENSE))) == STEPS
    for name, mode in ((WORDS, 'optimize'), (BINS, 'assign')):
        updates = collections.defaultdict(list)
        for server in range(servers):
            for event in trace.spans('server %d' % server, mode + ' '):
                if name in event['args']['table']:
                    updates[event['args']['key']].append(event)
        assert len(updates) == PARTITIONS
        for events in updates.values():
            assert len(events) == STEPS
            for number, event in enumerate(events):  # a server waits for all workers
                assert event['ts'] >= max(pushes[worker, name][number]['ts'] for worker in workers)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line['step'] for line in lines] == list(range(1, STEPS + 1))
    for kind in ('server weights', 'server gradients', 'allreduce'):
        mine = [counts for known, *counts in result.results[0]['traffic'].values() if known == kind]
        for column, what in enumerate(('rows', 'pushed')):
            assert sum(line['routes'].get(kind, {}).get(what, 0) for line in lines) == sum(
                counts[column] for counts in mine)
    for line in lines:
        assert 0 <= line['store_seconds'] <= line['seconds']
        assert set(line['alpha']) == {WORDS, BINS} and 0 < line['alpha'][WORDS] <= 12 / 40
    assert [line['wall'] for line in lines] == sorted(line['wall'] for line in lines)


def test_a_job_that_fails_leaves_a_trace(tmp_path):
    path = tmp_path / 'job.json'
    result = run_job(FAULTS, 'launch.py', workers=2, args=[1, 'raise', 5], timeout=60, env={'MXHYBRID_TRACE': path})
    result.failed('ValueError: deliberately wrong')
    trace = Trace(path)
    assert sorted(trace.processes) == ['server 0', 'worker 0', 'worker 1']
    assert {len(trace.spans(worker, 'push ')) for worker in ('worker 0', 'worker 1')} <= {5, 6}
    said = [event['name'] for event in trace.events if event['ph'] == 'i']
    assert any(text.startswith('worker 1 (host') and 'deliberately wrong' in text for text in said)


def test_a_worker_that_is_killed_is_in_the_trace(tmp_path):
    path = tmp_path / 'job.json'
    with start_job(FAULTS, 'horovodrun', workers=2, args=[0, 'nothing', 0], env={'MXHYBRID_TRACE': path}) as job:
        job.wait_for_output('step 60', timeout=60)  # events are sent every second
        job.kill(next(process.pid for process in job.processes('worker') if process.rank == 1))
        job.wait(timeout=30).failed()
    trace = Trace(path)
    assert {'server 0', 'worker 0', 'worker 1'} == set(trace.processes)
    assert all(trace.spans(worker, 'push ') for worker in ('worker 0', 'worker 1'))
    assert any('died' in event['name'] for event in trace.events if event['ph'] == 'i')


@pytest.mark.parametrize('launcher, variable', [('horovodrun', 'MXHYBRID_METRICS'), ('launch.py', 'MXHYBRID_TRACE')])
def test_an_unwritable_trace_ends_the_job_before_training(tmp_path, launcher, variable):
    path = tmp_path / 'missing' / 'file'
    result = run_job(FAULTS, launcher, workers=2, args=[0, 'nothing', 0], timeout=60, env={variable: path})
    result.failed('SettingError', '%s=' % variable, str(path)[:100], 'No such file or directory')
    assert 'step 0' not in result.output
