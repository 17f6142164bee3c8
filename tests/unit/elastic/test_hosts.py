"""Hosts of elastic jobs: lists, scripts that print them, and pauses of hosts that failed."""
import logging
import threading

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.elastic import hosts
from mxhybrid.elastic.hosts import Cooldowns, Discovery, Host, chosen_slots, parse_hosts


def test_hosts_have_numbers_of_workers():
    assert parse_hosts(['a:2', 'b'], 3, '-H') == [Host('a', 2), Host('b', 3)]


@pytest.mark.parametrize('words, problem', [
    *[([word], '-H: .* is not a host: give names with a number of workers')
      for word in ('a:', ':2', 'a:0', 'a:-1', 'a:2:2', '')],
    (['a:1', 'b', 'a:2'], "host 'a' is given twice")])
def test_words_that_are_no_hosts_are_refused(words, problem):
    with pytest.raises(SettingError, match=problem):
        parse_hosts(words, 1, '-H')


def script(tmp_path, text):
    """Write a script that prints hosts."""
    path = tmp_path / 'discover'
    path.write_text('#!/bin/sh\n' + text)
    path.chmod(0o755)
    return path


def test_a_script_is_run_until_it_is_closed(tmp_path):
    listed, changed = tmp_path / 'hosts', threading.Event()
    listed.write_text('a:2\nb\n')
    discovery = Discovery(str(script(tmp_path, 'cat %s\n' % listed)), 4, changed.set).start()
    assert discovery.hosts == [Host('a', 2), Host('b', 4)] and changed.is_set()
    changed.clear()
    listed.write_text('b\n')
    assert changed.wait(20) and discovery.hosts == [Host('b', 4)]
    discovery.close()


@pytest.mark.parametrize('text, problem', [
    ('exit 3', 'ended with status 3'), ('sleep 30', 'took more than 0.5 s'), ('', 'printed no host'),
    ('echo a; echo a:2', "host 'a' is given twice"), ('echo a:b', "'a:b' is not a host")])
def test_the_last_list_counts_while_a_script_fails(tmp_path, caplog, monkeypatch, text, problem):
    monkeypatch.setattr(hosts, 'SCRIPT_S', 0.5)
    caplog.set_level(logging.WARNING)
    path = script(tmp_path, 'echo a:2')
    discovery = Discovery(str(path), 1, lambda: None)
    discovery._look()
    path.write_text('#!/bin/sh\n' + text.replace('sleep', 'exec sleep'))
    discovery._look()
    discovery._look()
    assert discovery.hosts == [Host('a', 2)] and problem in discovery.problem
    assert len(caplog.messages) == 1 and problem in caplog.text and 'the hosts stay a' in caplog.text
    path.write_text('#!/bin/sh\necho c')
    discovery._look()
    assert discovery.hosts == [Host('c', 1)] and not discovery.problem


def test_a_missing_script_is_a_problem():
    discovery = Discovery('/nowhere/discover', 1, lambda: None)
    discovery._look()
    assert 'No such file' in discovery.problem and discovery.hosts == []


def test_a_host_waits_twice_as_long_each_time():
    now = [0.0]
    cooldowns = Cooldowns((10, 35), lambda: now[0])
    both = [Host('a', 1), Host('b', 1)]
    assert cooldowns.without(both) == both and cooldowns.next_s(both) is None
    assert [cooldowns.add('a') for _ in range(3)] == [10, 20, 35]
    assert cooldowns.without(both) == both[1:] and cooldowns.next_s(both) == 35
    now[0] = 35.0
    assert cooldowns.without(both) == both and cooldowns.next_s(both) is None


@pytest.mark.parametrize('least, most, expected', [
    (1, 4, [('a', 2), ('b', 2)]), (1, 3, [('a', 2), ('b', 1)]), (1, 2, [('a', 2)]), (5, 9, [])])
def test_workers_fill_the_hosts_in_order(least, most, expected):
    assert chosen_slots([Host('a', 2), Host('b', 2)], least, most) == expected
