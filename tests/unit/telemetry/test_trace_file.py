"""The trace file of a job."""
import json
import os
import resource

import pytest

from mxhybrid.telemetry.trace_file import TraceFile

pytestmark = pytest.mark.both_pythons

EVENT = {'ph': 'i', 's': 't', 'name': 'ä "quoted"\n', 'ts': 1.5, 'tid': 0}


@pytest.fixture
def path(tmp_path):
    """Return the path of the file."""
    return tmp_path / 'trace.json'


def aside(path):
    """The file that is being written."""
    return path.with_name('%s.%d.part' % (path.name, os.getpid()))


def test_the_file_appears_whole(path):
    path.write_text('an older one')
    file = TraceFile(str(path))
    file.name(0, 'worker 0', 0)
    file.add(0, [dict(EVENT), dict(EVENT, ts=2)])
    file.add(3, [])
    file.add(3, [dict(EVENT)])
    assert path.read_text() == 'an older one'
    assert file.close() and not file.close()
    events = json.loads(path.read_text())
    assert [event['pid'] for event in events] == [0, 0, 0, 0, 3]
    assert events[0]['args'] == {'name': 'worker 0'} and events[1]['args'] == {'sort_index': 0}
    assert events[4] == dict(EVENT, pid=3)
    assert os.listdir(str(path.parent)) == [path.name]
    assert file.count == 3
    file.add(0, [dict(EVENT)])  # too late, and harmless
    assert json.loads(path.read_text()) == events


def test_without_events_it_is_an_empty_list(path):
    TraceFile(str(path)).close()
    assert json.loads(path.read_text()) == []


def test_a_killed_process_leaves_a_readable_trace(path):
    file = TraceFile(str(path))
    file.add(0, [dict(EVENT)])
    assert json.loads(aside(path).read_text() + ']') == [dict(EVENT, pid=0)]
    file.discard()
    file.discard()
    assert os.listdir(str(path.parent)) == []
    assert not file.close()


def test_a_process_is_named_again_when_its_name_changes(path):
    file = TraceFile(str(path))
    for name, order in [('a server', 2), ('a server', 2), ('server 1', 3)]:
        file.name(2, name, order)
    file.close()
    events = json.loads(path.read_text())
    assert [list(event['args'].values())[0] for event in events] == ['a server', 2, 'server 1', 3]


@pytest.mark.parametrize('wrong', [3, {}, {'ph': 'X'}, {'ph': 1, 'ts': 1}, {'ph': 'X', 'ts': 'soon'}, [],
                                   {'ph': 'X', 'ts': float('nan')}, {'ph': 'X', 'ts': 1, 'args': object()}])
def test_impossible_values_are_refused_and_spoil_nothing(path, wrong):
    file = TraceFile(str(path))
    with pytest.raises((ValueError, TypeError)):
        file.add(0, [wrong])
    file.add(0, [dict(EVENT)])
    file.close()
    assert json.loads(path.read_text()) == [dict(EVENT, pid=0)]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / 'file').write_text('')
    for path, error in [('missing/trace.json', FileNotFoundError), ('file/trace.json', NotADirectoryError),
                        ('', IsADirectoryError)]:
        with pytest.raises(error):
            TraceFile(str(tmp_path / path))
    assert os.listdir(str(tmp_path)) == ['file']


def test_a_full_disk_ends_the_trace_but_nothing_else(path, caplog):
    file = TraceFile(str(path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        file.add(0, [dict(EVENT)])
        file.add(0, [dict(EVENT) for _ in range(100)])
        file.add(0, [dict(EVENT)])
        assert not file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [record.getMessage().startswith('trace=%r is not' % str(path)) for record in caplog.records] == [True]
    assert json.loads(path.read_text()) == [dict(EVENT, pid=0)]
    assert os.listdir(str(path.parent)) == [path.name]
