"""Events travel from every process to the trace file, over real connections."""
import json
import os
import socket
import time
from types import SimpleNamespace

import pytest

from mxhybrid.telemetry import recorder as trace, trace_writer
from mxhybrid.telemetry.trace_file import TraceFile
from mxhybrid.telemetry.trace_sender import TraceSender
from mxhybrid.telemetry.trace_writer import TraceWriter
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.monitor import Monitor

from ...helpers.obedient import Obedient

pytestmark = pytest.mark.both_pythons

LIMIT_S = 20

MEMBER = """
import json, sys, time, types
package = types.ModuleType('mxhybrid')
package.__path__ = [sys.argv[1]]
sys.modules['mxhybrid'] = package
from mxhybrid.telemetry import trace_sender, recorder as trace
from mxhybrid.watchdog.lifeline import Lifeline
address, name, rank, ahead, limit = (sys.argv[2], int(sys.argv[3])), sys.argv[4], *map(int, sys.argv[5:8])
trace_sender.now = trace.now = lambda: time.monotonic_ns() + ahead
trace_sender.INTERVAL_S = 0.0
line = Lifeline(address, name, rank, 10, 'open sesame')
recorder = trace.Recorder(name + ' (host h)', number=int(name.split()[1]), limit=limit)
sender = trace_sender.TraceSender(recorder, line)
while sender._offset.value is None:
    time.sleep(0.01)
print('connected', flush=True)
for command in sys.stdin:
    word, _, rest = command.strip().partition(' ')
    if word == 'span':
        with recorder.span(rest, 'test', rank=rank):
            pass
        print('ok', flush=True)
    elif word == 'send':
        line.send(json.loads(rest))
        print('ok', flush=True)
    elif word == 'finish':
        print(line.finish(), flush=True)
    elif word == 'fail':
        sender.finish()
        line.fail(rest)
        print('ok', flush=True)
"""


class Member(Obedient):
    """A process of the job, whose clock is `ahead` nanoseconds ahead of this one's."""

    def __init__(self, monitor, name, rank, ahead=0, limit=1000):
        super().__init__(MEMBER, monitor.address[0], monitor.address[1], name, rank, ahead, limit)
        assert self.answer() == 'connected'

class Job:
    """A monitor in this process that writes a trace, and members."""

    def __init__(self, path, workers):
        self.path = path
        self.monitor = Monitor('127.0.0.1', workers, 1, 'open sesame')
        self.trace_writer = TraceWriter(self.monitor, TraceFile(str(path)), workers)
        self.members = []

    def member(self, *args, **keywords):
        """Start a member."""
        self.members.append(Member(self.monitor, *args, **keywords))
        return self.members[-1]

    def part(self):
        """Return the contents of the unfinished file."""
        return self.path.with_name('%s.%d.part' % (self.path.name, os.getpid())).read_text()

    def wait_until(self, condition):
        """Wait for something that another thread does."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def events(self):
        """All events of the finished file."""
        self.wait_until(self.path.exists)
        return json.loads(self.path.read_text())


@pytest.fixture
def job(tmp_path):
    """Makes a job."""
    jobs = []

    def make(workers):
        jobs.append(Job(tmp_path / 'trace.json', workers))
        return jobs[-1]

    yield make
    for member in [member for job in jobs for member in job.members]:
        member.process.kill()
        member.process.communicate()


def names_of_processes(events):
    """Process names by pid."""
    return {event['pid']: event['args']['name'] for event in events if event['name'] == 'process_name'}


def test_all_processes_come_together_by_one_clock(job):
    traced_job = job(2)
    origin = traced_job.trace_writer._origin
    ahead = 1000 * 10 ** 9
    workers = [traced_job.member('worker 0', 0), traced_job.member('worker 1', 1, ahead)]
    servers = [traced_job.member('server 1', -1, -ahead), traced_job.member('server 0', -1, 7)]
    bounds = {}
    for number, member in enumerate(workers + servers):
        before = trace.now()
        assert member.ask('span s%d' % number) == 'ok'
        bounds['s%d' % number] = ((before - origin) / 1000, (trace.now() - origin) / 1000)
    workers[0].say('finish')
    workers[1].say('finish')
    assert [worker.answer() for worker in workers] == ['True', 'True']
    events = traced_job.events()
    spans = {event['name']: event for event in events if event['ph'] == 'X'}
    names = names_of_processes(events)
    assert {name: names[span['pid']] for name, span in spans.items()} == {
        's0': 'worker 0 (host h)', 's1': 'worker 1 (host h)', 's2': 'server 1 (host h)', 's3': 'server 0 (host h)'}
    assert [spans[name]['pid'] for name in ('s0', 's1')] == [0, 1]
    order = {names[event['pid']]: event['args']['sort_index']
             for event in events if event['name'] == 'process_sort_index'}
    assert [name.split(' (')[0] for name in sorted(order, key=order.get)] == ['worker 0', 'worker 1', 'server 0',
                                                                              'server 1']
    for name, (low, high) in bounds.items():
        # Wrong clocks would show in 1000 s; a round trip here takes far less than 5 s.
        assert low - 5e6 <= spans[name]['ts'] <= high + 5e6
    for name in ('s0', 's3'):  # processes with this clock, or 7 ns beside it, are not touched at all
        assert bounds[name][0] - 1 <= spans[name]['ts'] <= bounds[name][1] + 1


def test_records_of_a_killed_process_are_kept(job, caplog):
    traced_job = job(2)
    first, second = traced_job.member('worker 0', 0), traced_job.member('worker 1', 1)
    second.ask('span before')
    traced_job.wait_until(lambda: 'before' in traced_job.part())
    first.ask('span survivor')
    second.process.kill()
    events = traced_job.events()
    assert {'before', 'survivor'} <= {event['name'] for event in events}
    failure = [event for event in events if event['ph'] == 'i']
    assert [(event['s'], event['name'][:13]) for event in failure] == [('g', 'worker 1 died')]
    first.process.wait(LIMIT_S)
    assert first.process.returncode == 1


def test_a_failing_process_sends_its_last_events(job):
    traced_job = job(1)
    server = traced_job.member('server 0', -1)
    worker = traced_job.member('worker 0', 0)
    worker.ask('span last')
    server.ask('span last of server')
    assert worker.ask('fail on purpose') == 'ok'
    events = traced_job.events()
    assert [event['name'] for event in events if event['ph'] == 'i'] == ['worker 0 failed: on purpose']
    assert {'last', 'last of server'} <= {event['name'] for event in events}
    traced_job.trace_writer.wait()  # returns


def test_a_process_that_fails_early_sends_its_events():
    sent, handlers, recorder = [], {}, trace.Recorder('worker 1 (host h)', number=1)
    sender = TraceSender(recorder, SimpleNamespace(send=sent.append, listen=handlers.__setitem__))
    recorder.instant('failed')
    handlers['pong']([sent[0]['ping'], trace.now(), 0])  # the first of several answers about the clock
    sender.finish()
    names = [event['name'] for message in sent if 'trace' in message for event in message['trace']['events']]
    assert 'failed' in names


def test_malformed_messages_spoil_nothing(job):
    traced_job = job(1)
    worker = traced_job.member('worker 0', 0)
    wrong = [{'trace': 3}, {'trace': {}}, {'trace': {'name': 'x', 'events': []}}, {'pong': 1}, {'ping': None},
             {'trace': {'name': 'x', 'number': 0, 'events': [{'ph': 'X'}]}}, {'no_more_events': 3},
             {'trace': {'name': 'x', 'number': 0, 'events': 7}}, {'trace': {'number': 0, 'events': []}}]
    for message in wrong:
        assert worker.ask('send ' + json.dumps(message)) == 'ok'
    with socket.create_connection(traced_job.monitor.address, timeout=LIMIT_S) as stranger:  # never said hello
        stranger.sendall(b'{"trace": {"name": "evil", "number": 0, "events": []}}\nnonsense\n')
        worker.ask('span good')
        worker.say('finish')
        assert worker.answer() == 'True'
    events = traced_job.events()
    assert [event['name'] for event in events if event['ph'] == 'X'] == ['good']
    assert 'evil' not in traced_job.path.read_text()


def test_dropped_events_are_said(job, caplog):
    traced_job = job(1)
    worker = traced_job.member('worker 0', 0, limit=5)
    for number in range(7):
        worker.ask('span %d' % number)
    worker.say('finish')
    with caplog.at_level('INFO', logger='mxhybrid'):
        assert worker.answer() == 'True'
    assert len([event for event in traced_job.events() if event['ph'] == 'X']) == 4
    said = [record.getMessage() for record in caplog.records]
    assert 'trace: worker 0 (host h) dropped 3 events beyond its limit' in said
    assert 'worker 0 (host h) dropped 3 events beyond its limit' in {event['name'] for event in traced_job.events()}


def test_a_silent_process_delays_the_end_briefly(job, monkeypatch):
    monkeypatch.setattr(trace_writer, 'LAST_EVENTS_S', 0.2)
    traced_job = job(1)
    worker = traced_job.member('worker 0', 0)
    server = traced_job.member('server 0', -1)
    server.process.send_signal(19)  # SIGSTOP
    worker.ask('span good')
    worker.say('finish')
    assert worker.answer() == 'True'
    assert 'good' in {event['name'] for event in traced_job.events()}


def test_a_listener_added_meanwhile_disturbs_nobody():
    line, heard = Lifeline.__new__(Lifeline), []
    line._listeners = {'first': lambda _: line.listen('second', heard.append)}
    line._handle({'first': 1})
    line._handle({'second': 2})
    assert heard == [2]
