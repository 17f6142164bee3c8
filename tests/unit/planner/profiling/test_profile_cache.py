"""The file of measured times: its entries, its locks, and files that are refused."""
import fcntl
import json
import multiprocessing
import os

import pytest

from mxhybrid import InputError
from mxhybrid.planner.profiling import profile_cache
from mxhybrid.planner.profiling.operator_profiler import OperatorProfiler
from mxhybrid.planner.profiling.profile_cache import merge_profiles, read_profiles


def entry(value):
    return {'parts': {'Convolution %s' % value: [1.0, 2.0, 3.0, 4.0]}, 'programs': {}, 'reference': {}}


def _merge(path, value):
    merge_profiles(path, entry(value))


def test_entries_of_several_processes_are_merged(tmp_path):
    path = str(tmp_path / 'profiles.json')
    context = multiprocessing.get_context('spawn')
    processes = [context.Process(target=_merge, args=(path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert len(read_profiles(path)['parts']) == 3
    assert len(merge_profiles(path, entry('own'))['parts']) == 4


@pytest.mark.parametrize('change, text', [
    ({'format': 'mxhybrid.profiles 0'}, 'no format'), ({'parts': 3}, 'no format'),
    ({'machine': {'mxnet': '1.8.0, 3 bytes', 'cpu': 'x', 'threads': '1'}}, "was measured with mxnet '1.8.0, 3 bytes'"),
    ({'machine': None}, 'was measured with mxnet None'),
    ({'parts': {'Convolution 1': [1.0, -2.0, 1, 1]}}, r"has \[1.0, -2.0, 1, 1\] for 'Convolution 1'"),
    ({'parts': {'Convolution 1': [1.0, 2.0]}}, r"has \[1.0, 2.0\] for 'Convolution 1'"),
    ({'parts': {'Convolution 1': [10 ** 400, 1, 1, 1]}}, "for 'Convolution 1'"),
    ({'reference': {'seconds': [1.0]}}, r"has \[1.0\] for 'seconds'")])
def test_a_file_of_something_else_is_refused(tmp_path, change, text):
    path = tmp_path / 'profiles.json'
    merge_profiles(str(path), entry(1))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=text):
        OperatorProfiler(str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / 'profiles.json'
    path.write_text('{')
    with pytest.raises(InputError, match='cannot read %s' % path):
        read_profiles(str(path))


def test_threads_and_cpu_have_files_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    path = profile_cache.default_path()
    monkeypatch.setenv('OMP_NUM_THREADS', '2')
    assert profile_cache.default_path() != path
    assert os.path.dirname(path) == str(tmp_path / 'mxhybrid')
    merge_profiles(path, entry(1))
    with pytest.raises(InputError, match="was measured with threads '2', but here it is '1'"):
        monkeypatch.setenv('OMP_NUM_THREADS', '1')
        read_profiles(path)


def test_times_of_joint_starts_are_of_one_core(tmp_path):
    path = str(tmp_path / 'profiles.json')
    for slower in (1.0, 2.0):
        merge_profiles(path, {'parts': {'Convolution %g' % slower: [slower, 2 * slower, 3.0, 4.0]},
                              'programs': {'program %g' % slower: [slower, slower]},
                              'reference': {'seconds': [slower, slower, slower]}})
    profiles = read_profiles(path)
    assert profiles['reference'] == {'seconds': [1.0, 1.0, 1.0]}
    assert profiles['parts'] == dict.fromkeys(['Convolution 1', 'Convolution 2'], [1.0, 2.0, 3.0, 4.0])
    assert profiles['programs'] == dict.fromkeys(['program 1', 'program 2'], [1.0, 1.0])


def test_a_writer_that_was_stopped_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_cache, '_LOCK_S', 0.1)
    path = str(tmp_path / 'profiles.json')
    with open(path + '.lock', 'w') as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        kept = merge_profiles(path, {section: {} for section in profile_cache.SECTIONS})
    assert kept == read_profiles(path)
    assert os.path.exists(path)
