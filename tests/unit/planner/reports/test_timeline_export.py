"""A simulated step as files."""
import json
import os

import pytest

from mxhybrid import InputError
from mxhybrid.planner.reports.timeline_export import FIRST_PID, draw_gantt, write_timeline
from mxhybrid.planner.task_graph.simulated_tasks import TASK_KINDS, SimulatedTask
from mxhybrid.telemetry.trace_file import TraceFile

TASKS = [SimulatedTask('conv1', 0, 0.0, 0.010, 'forward'), SimulatedTask('conv1', 1, 0.0, 0.012, 'forward'),
         SimulatedTask('fc6', 0, 0.010, 0.0105, 'redistribution', 4000),
         SimulatedTask('fc6', 'a to b', 0.0105, 0.02, 'redistribution', 4000),
         SimulatedTask('fc6', 2, 0.02, 0.03, 'backward'), SimulatedTask('fc6_weight', 2, 0.022, 0.029, 'sum', 800),
         SimulatedTask('fc6_weight', 2, 0.03, 0.04, 'update')]


def events_of(path):
    """Return the events of each process by its name."""
    events = json.loads(path.read_text())
    names = {event['pid']: event['args']['name'] for event in events if event['name'] == 'process_name'}
    return {name: [event for event in events if event['pid'] == pid and event['ph'] != 'M']
            for pid, name in names.items()}


def test_trace(tmp_path):
    path = tmp_path / 'sim.json'
    write_timeline(str(path), TASKS, {0: 'worker 0 (host a)'})
    events_by_process = events_of(path)
    assert list(events_by_process) == ['worker 0 (host a), simulated', 'worker 1, simulated', 'worker 2, simulated',
                                       'a to b, simulated']
    begin, end, computes, step = events_by_process['worker 0 (host a), simulated']
    assert (begin['ph'], end['ph'], begin['name'], begin['cat']) == ('b', 'e', 'redistribution fc6', 'redistribution')
    assert begin['id2'] == end['id2'] and begin['args'] == {'bytes': 4000}
    assert (begin['ts'], end['ts']) == (pytest.approx(10000), pytest.approx(10500))
    assert (computes['ph'], computes['name'], computes['tid']) == ('X', 'forward conv1', 0)
    assert (computes['ts'], computes['dur']) == (0, pytest.approx(10000))
    assert (step['name'], step['dur']) == ('simulated step', pytest.approx(40000))
    link, = events_by_process['a to b, simulated']
    assert (link['ph'], link['name'], link['args']) == ('X', 'redistribution fc6', {'bytes': 4000})
    assert [event['name'] for event in events_by_process['worker 2, simulated']] == [
        'allreduce fc6_weight', 'allreduce fc6_weight', 'backward fc6', 'update fc6_weight', 'simulated step']
    numbers = [event['id2']['local'] for events in events_by_process.values() for event in events if event['ph'] == 'b']
    assert len(set(numbers)) == len(numbers) == 2
    assert os.listdir(str(tmp_path)) == ['sim.json']


def test_a_jobs_own_events_fit_beside_it(tmp_path):
    """The format is the same, and no number of a process is used twice."""
    real = TraceFile(str(tmp_path / 'job.json'))
    real.name(2, 'worker 2 (host a)', 2)
    real.add(2, [{'ph': 'X', 'name': 'step 4', 'cat': 'step', 'ts': 1.0, 'dur': 2.0, 'tid': 0, 'args': {}}])
    real.close()
    write_timeline(str(tmp_path / 'sim.json'), TASKS)
    job, simulated = [json.loads((tmp_path / name).read_text()) for name in ('job.json', 'sim.json')]
    assert not {event['pid'] for event in job} & {event['pid'] for event in simulated}
    places = [event for event in simulated if event['name'] == 'process_sort_index']
    assert [(event['pid'] - FIRST_PID, event['args']['sort_index']) for event in places] == [(0, 0), (1, 1), (2, 2),
                                                                                             (3, 3)]
    for event in job:
        alike = next(other for other in simulated if (other['ph'], other.get('cat')) == (event['ph'], event.get('cat'))
                     and other['name'] in (event['name'], 'simulated step'))
        assert set(event) == set(alike)


def test_it_begins_when_a_real_step_does(tmp_path):
    for name, begin in (('zero', 0.0), ('later', 7.5)):
        write_timeline(str(tmp_path / name), TASKS, begin_s=begin)
    zero, later = [json.loads((tmp_path / name).read_text()) for name in ('zero', 'later')]
    assert [event['ts'] for event in later] == pytest.approx([event['ts'] + 7.5e6 * (event['ph'] != 'M')
                                                             for event in zero])
    assert [event.get('dur') for event in later] == [event.get('dur') for event in zero]


def test_ranks_and_links_share_no_number(tmp_path):
    path = tmp_path / 'sim.json'
    write_timeline(str(path), [SimulatedTask('x', where, 0, 1, 'sum') for where in (0, 2, 'up', 'down')])
    assert len(events_of(path)) == 4


@pytest.mark.parametrize('tasks, message', [
    ([], 'there are no tasks'),
    ([SimulatedTask('x', 0, 0, 1, 'bother')], "'bother' is not a kind of task: give one of forward")])
def test_tasks_that_are_none(tasks, message, tmp_path):
    for write in (write_timeline, lambda path, tasks: draw_gantt(tasks, path)):
        with pytest.raises(InputError, match=message):
            write(str(tmp_path / 'sim.json'), tasks)
    assert os.listdir(str(tmp_path)) == []


def test_trace_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match='cannot be written: it is a directory'):
        write_timeline(str(tmp_path), TASKS)
    with pytest.raises(InputError, match='none/sim.json cannot be written'):
        write_timeline(str(tmp_path / 'none' / 'sim.json'), TASKS)


@pytest.mark.parametrize('tasks', [
    TASKS, [SimulatedTask('x', rank, 0, 1e-3 * at, kind) for rank in range(70) for at, kind in enumerate(TASK_KINDS)]])
def test_gantt(tasks, tmp_path):
    picture = tmp_path / 'gantt.png'
    draw_gantt(tasks, str(picture), 'data parallel', {0: 'worker 0 (host a)'})
    assert picture.read_bytes().startswith(b'\x89PNG')
    with pytest.raises(InputError, match='cannot be written'):
        draw_gantt(tasks, str(tmp_path / 'gantt.none'))
