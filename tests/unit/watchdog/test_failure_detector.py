"""The failure detector: processes that are silent, absent, stuck, or silent but computing."""
import json
import logging
import re

import pytest

from mxhybrid.watchdog import failure_detector, identity
from mxhybrid.watchdog.failure_detector import GATHER_S
from mxhybrid.watchdog.script import AN_ARRAY

from .watching import LIMITS, Sampler, Watch

pytestmark = pytest.mark.both_pythons

# ------------------------------------------------------------------------------------------ silence


def test_a_silent_worker_is_named_with_causes(pair):
    assert pair.wait(LIMITS.silence + GATHER_S, pair.peers[:1]) is None
    failure = pair.wait(1, pair.peers[:1])
    assert failure.reason == ('worker1 has been silent for 13 s: it is stopped, its host hangs, or the network to it '
                              'is cut')
    assert [process['host'] for process in failure.silent] == ['b']


def test_any_message_counts_as_a_sign_of_life(pair):
    for _ in range(3):
        assert pair.wait(LIMITS.silence, pair.peers[:1]) is None
        pair.detector.mark_heard(pair.peers[1])
    assert pair.wait(60, pair.peers) is None


@pytest.mark.parametrize('hosts, beating, reason', [
    ('aabb', 2, r'host b \(worker2, worker3\) has been silent for 13 s: it hangs, or its network is cut'),
    ('aabb', 3, 'worker3 has been silent for 13 s: it is stopped, its host hangs, or the network to it is cut'),
    ('abc', 1, 'all other hosts have been silent for .*the network of host a, where worker 0 runs, is cut.*')],
    ids=['a host', 'a process of a living host', 'all other hosts'])
def test_silent_hosts_are_named_as_a_whole(monkeypatch, hosts, beating, reason):
    monkeypatch.setattr(identity.socket, 'gethostname', lambda: 'a')
    watch = Watch(len(hosts), **{'worker%d' % rank: host for rank, host in enumerate(hosts)})
    failure = watch.wait(60, watch.peers[:beating])
    assert re.fullmatch(reason, failure.reason), failure.reason
    assert len(failure.silent) == len(hosts) - beating


def test_a_monitor_that_was_stopped_blames_nobody(pair):
    pair.time.now += 1000
    assert pair.detector.detect(pair.peers) is None
    assert pair.wait(60, pair.peers) is None


def test_a_process_that_has_left_may_be_silent(pair):
    pair.peers[1].has_left = True
    assert pair.wait(60, pair.peers[:1]) is None


# ------------------------------------------------------------------------------------------ absence


def test_a_worker_that_does_not_join_is_named():
    watch = Watch(3, worker0='a', worker2='b')
    failure = watch.wait(60, watch.peers)
    assert failure.reason == 'worker 1 did not join within 30 s'


def test_the_join_limit_counts_from_the_last_join():
    watch = Watch(3, worker0='a')
    assert watch.wait(25, watch.peers) is None
    watch.peers.append(watch.detector.add_process('worker 2', 2))
    assert watch.wait(25, watch.peers) is None
    assert watch.wait(10, watch.peers).reason == 'worker 1 did not join within 30 s'


def test_a_server_that_does_not_join_is_named():
    watch = Watch(1, worker0='a')
    watch.detector.expect_servers(watch.peers[0], [['server', 71], ['scheduler', 72]])
    server = watch.detector.add_process('server', -1)
    watch.peers.append(server)
    watch.beat(server, process={'pid': 71, 'host': 'a', 'pid_space': 'a', 'started': '1'})
    assert watch.detector.has_parent(server) and not watch.detector.has_parent(watch.peers[0])
    failure = watch.wait(60, watch.peers)
    assert failure.reason == 'the scheduler with pid 72 on host a did not join within 30 s'


def test_a_server_may_join_before_its_parent_announces_it():
    watch = Watch(1, worker0='a', server='a')
    watch.beat(watch.peers[1], process={'pid': 71, 'host': 'a', 'pid_space': 'a', 'started': '1'})
    watch.detector.expect_servers(watch.peers[0], [['server', 71]])
    assert watch.detector.has_parent(watch.peers[1])
    assert watch.wait(100, watch.peers) is None


# ------------------------------------------------------------------------------------------ not going on


def test_workers_that_wait_in_different_calls_end_soon(pair):
    pushes, barrier = {'calls': 3, 'waiting': 'pushes'}, {'calls': 3, 'waiting': 'barrier'}
    for calls in range(4, 30):  # calls that return
        assert pair.wait(3, pair.peers, worker0=dict(pushes, calls=calls), worker1=dict(barrier, calls=calls)) is None
    for other in (pushes, {'calls': 3, 'waiting': None}, {'calls': 3, 'waiting': AN_ARRAY}):
        assert pair.wait(60, pair.peers, worker0=pushes, worker1=other) is None
    assert pair.wait(10, pair.peers, worker0=pushes, worker1=barrier) is None
    assert pair.wait(10, pair.peers[:1], worker0=pushes) is None  # silent worker 1 may wait no more
    failure = pair.wait(2, pair.peers, worker0=pushes, worker1=barrier)
    assert failure.reason.startswith('all workers wait for each other in different calls (worker 0 in pushes, '
                                     'worker 1 in barrier): ')


def test_workers_in_different_calls_await_a_missing_worker():
    watch = Watch(3, worker0='a', worker1='b')
    assert watch.wait(25, watch.peers, worker0={'waiting': 'pushes'}, worker1={'waiting': 'barrier'}) is None


def test_a_worker_busy_for_all_is_only_reported(caplog):
    watch = Watch(2, worker0='a', worker1='a')
    assert watch.wait(500, watch.peers, worker0={'busy': True}, worker1={'calls': 1}) is None
    assert caplog.messages and all('worker0 has kept the other workers waiting' in text for text in caplog.messages)
    assert watch.wait(50, watch.peers, worker0={'busy': False}, worker1={'calls': 1}) is None  # it counts again
    failure = watch.wait(500, watch.peers, worker0={'busy': False}, worker1={'calls': 1})
    assert failure.reason.startswith('worker0 has kept the other workers waiting')


def test_an_awaited_worker_is_named_at_doubled_intervals(caplog):
    watch = Watch(3, worker0='a', worker1='a', worker2='b')
    ahead = {'calls': 9, 'call': 'push of net_dense0_weight'}
    failure = watch.wait(200, watch.peers, worker0=ahead, worker1=dict(ahead, calls=8),
                         worker2={'calls': 5, 'location': 'train.py:81 in evaluate'})
    assert caplog.messages[0] == (
        'worker2 has kept the other workers waiting for 11 s: they are at collective call number 9 (push of '
        'net_dense0_weight), it has made 5 calls and is at train.py:81 in evaluate')
    assert [text.split(' s: ')[0].rsplit(' ', 1)[1] for text in caplog.messages] == ['11', '21', '41', '81']
    assert failure.reason.startswith('worker2 has kept the other workers waiting for 101 s') and failure.silent == []


def test_a_worker_that_catches_up_is_not_missed(pair, caplog):
    for calls in range(20):
        assert pair.wait(9, pair.peers, worker0={'calls': calls + 1}, worker1={'calls': calls}) is None
    assert not caplog.records


@pytest.mark.parametrize('calls, has_ended', [(4, False), (3, True)])
def test_a_worker_that_is_done_is_not_missed(pair, calls, has_ended):
    pair.peers[1].has_ended = has_ended
    assert pair.wait(500, pair.peers, worker0={'calls': 4}, worker1={'calls': calls}) is None


# ------------------------------------------------------------------------------------------ silent but computing


@pytest.fixture
def watch(monkeypatch):
    """A failure detector of two workers on its own host a, the second of which is silent, and three processes on b."""
    monkeypatch.setattr(identity, 'pid_space', lambda: 'a')
    watch = Watch(4, worker0='a', worker1='a', worker2='b', worker3='b', server='b')
    watch.others = list(watch.peers)
    watch.silent = watch.others.pop(1)
    watch.sample = Sampler(watch.time)
    monkeypatch.setattr(failure_detector, 'sample_process', watch.sample)
    return watch


def pid_of(peer):
    return peer.process['pid']


def wait(watch, seconds, beating):
    """Let time pass and answer requests for samples; return the first failure, and the processes that were asked."""
    asked = []
    for _ in range(seconds):
        failure = watch.wait(1, beating)
        for peer, processes in watch.detector.sample_requests(watch.peers):
            asked.append(peer.name)
            samples = [[process, watch.sample(process)] for process in processes]
            watch.detector.add_samples(watch.peers, json.loads(json.dumps(samples)))
        if failure is not None:
            return failure, asked
    return None, asked


def test_a_silent_worker_that_computes_is_awaited(watch, caplog):
    watch.sample.busy = {pid_of(watch.silent)}
    assert wait(watch, 90, watch.others) == (None, [])
    assert len(caplog.messages) == 3
    assert all(text.startswith('worker1 has been silent for') and 'though it computes' in text
               and text.endswith('its script was at train.py:1') for text in caplog.messages)
    failure, _ = wait(watch, 30, watch.others)
    assert failure.reason.startswith('worker1 has been silent for 101 s, though it computes')
    assert [process['pid'] for process in failure.silent] == [pid_of(watch.silent)]


def test_a_worker_that_computes_after_joining_is_reported(watch, caplog):
    silent = watch.peers[1] = watch.detector.add_process('worker1', 1)  # its first heartbeat comes with its hello
    others = [watch.peers[0]] + watch.peers[2:]
    watch.detector.handle_heartbeat(silent, {
        'process': {'pid': 7, 'host': 'a', 'pid_space': 'a', 'started': '1'}, 'calls': 0, 'call': '', 'location': ''})
    watch.sample.busy = {7}
    assert wait(watch, 20, others) == (None, [])
    assert [record.getMessage().split(',')[0] for record in caplog.records] == ['worker1 has been silent for 11 s']


def test_an_unreachable_worker_that_delays_others_is_killed(watch):
    ahead = {peer.name: {'calls': 1} for peer in watch.others}
    assert watch.wait(70, watch.peers, **ahead) is None
    watch.sample.busy = {pid_of(watch.silent)}
    failure = watch.wait(60, watch.others, **ahead)
    assert failure.reason.startswith('worker1 has kept the other workers waiting') and ' for 101 s' in failure.reason
    assert [process['pid'] for process in failure.silent] == [pid_of(watch.silent)]


def test_a_worker_has_its_limit_after_computing(watch):
    watch.sample.busy = {pid_of(watch.silent)}
    assert wait(watch, 50, watch.others) == (None, [])
    watch.sample.busy = set()
    assert wait(watch, int(LIMITS.silence + GATHER_S) - 1, watch.others) == (None, [])
    failure, _ = wait(watch, 3, watch.others)
    assert failure.reason.startswith('worker1 has been silent for 6')


def test_processes_of_other_hosts_are_sampled_by_processes_there(watch):
    silent, others = watch.peers[2], watch.peers[:2] + watch.peers[3:]
    watch.sample.busy = {pid_of(silent)}
    failure, asked = wait(watch, 90, others)
    assert failure is None and set(asked) == {'server'}
    watch.sample.busy = set()
    failure, _ = wait(watch, 30, others)
    assert failure.reason.startswith('worker2 has been silent')


def test_a_silent_host_is_not_sampled(watch):
    watch.sample.busy = {pid_of(peer) for peer in watch.peers[2:]}
    failure, asked = wait(watch, 60, watch.peers[:2])
    assert failure.reason.startswith('host b (worker2, worker3, server) has been silent for 13 s') and not asked
    assert len(failure.silent) == 3


def test_a_worker_that_saves_has_no_limit(watch):
    watch.beat(watch.silent, busy=True)
    watch.sample.busy = {pid_of(watch.silent)}
    assert wait(watch, 300, watch.others)[0] is None


def test_probes_are_announced_to_processes_of_other_hosts_only(watch, caplog):
    caplog.set_level(logging.WARNING)
    assert 'probes' not in watch.beat(watch.peers[2])['beat']
    watch.beat(watch.peers[1], probe=['10.0.0.1', 5])
    watch.beat(watch.peers[0], probe=['10.0.0.1', 6])
    assert watch.beat(watch.peers[2])['beat']['probes'] == [['10.0.0.1', 5], ['10.0.0.1', 6]]
    assert 'probes' not in watch.beat(watch.peers[1])['beat']
    watch.peers[1].has_left = True
    assert watch.beat(watch.peers[4])['beat']['probes'] == [['10.0.0.1', 6]]
