"""Files of a simulated step: a trace in the format of a job's traces, and a Gantt chart."""
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...base.errors import InputError
from ...base.figures import new_figure, save_figure
from ...base.files import UNWRITABLE
from ...base.text import seconds_text
from ...telemetry.trace_file import TraceFile
from ..task_graph.simulated_tasks import TASK_GROUPS, TASK_KINDS, SimulatedTask, Where, by_place, in_lanes

#: The number of the first simulated process.  No process of a job has such a number, so that events of a job fit into
#: the same file.
FIRST_PID = 1_000_000

#: Groups of tasks that occupy a rank's core from begin to end; traces show other kinds as operations, as a job's do.
_COMPUTING = ('compute', 'update', 'step')

#: Maximal number of rows of a chart, and the share of the step from which on a task is labelled.
_MAX_ROWS, _LABELLED_SHARE = 64, 0.04
#: Characters of labels that fit into the width of a chart.
_LABEL_CHARACTERS = 170


def write_timeline(path: str, tasks: Sequence[SimulatedTask], names: Optional[Mapping[Where, str]] = None,
                   begin_s: float = 0.0) -> None:
    """Write a simulated step as a trace in Chrome's format, as ``MXHYBRID_TRACE`` does for real steps.

    Ranks and links are processes.  Their numbers differ from those of a job's processes, and ranks are sorted like a
    job's workers, so that one file may hold the events of both.

    Parameters
    ----------
    path : str
    tasks : sequence of SimulatedTask
    names : dict of int or str to str, optional
        Names of ranks and links, for example ``'worker 0 (host a)'``.
    begin_s : float, optional
        The start of the step in the file, for example that of a real step to compare with.

    Raises
    ------
    InputError
        There are no tasks, a task has an unknown kind, or the file cannot be written.
    """
    _check(tasks)
    try:
        file = TraceFile(path)
    except OSError as error:
        raise InputError(UNWRITABLE % (path, error)) from error
    try:
        end = max(task.end_s for task in tasks)
        count = 0
        next_link = 1 + max([task.where for task in tasks if isinstance(task.where, int)] + [-1])
        for where, there in by_place(tasks).items():
            events = _events(there, count, begin_s)
            count += len(there)
            if isinstance(where, int):
                order = where
                events.append({'ph': 'X', 'name': 'simulated step', 'cat': 'step', 'ts': 1e6 * begin_s,
                               'dur': 1e6 * end, 'tid': 0, 'args': {}})
            else:
                order = next_link
                next_link += 1
            file.name(FIRST_PID + order, '%s, simulated' % _name_of(where, names), order)
            file.add(FIRST_PID + order, events)
        if not file.close():
            raise InputError(UNWRITABLE % (path, 'the disk is full, or it is not a file'))
    finally:
        file.discard()


def _events(tasks: Sequence[SimulatedTask], first_id: int, begin_s: float) -> List[Dict[str, Any]]:
    """Return the events of a rank or link.

    Tasks that occupy it are put into lanes; transfers of a rank are operations, which trace viewers arrange themselves.
    """
    events: List[Dict[str, Any]] = []
    spans = []
    for number, task in enumerate(tasks, first_id):
        kind = TASK_KINDS[task.kind]
        if isinstance(task.where, str) or kind.group in _COMPUTING:
            spans.append(task)
            continue
        event = {'name': kind.name % task.label, 'cat': kind.category, 'id2': {'local': str(number)}, 'tid': 0}
        events += [dict(event, ph='b', ts=1e6 * (begin_s + task.start_s), args={'bytes': task.size}),
                   dict(event, ph='e', ts=1e6 * (begin_s + task.end_s))]
    for lane, task in in_lanes(spans):
        kind = TASK_KINDS[task.kind]
        events.append({'ph': 'X', 'name': kind.name % task.label, 'cat': kind.category, 'tid': lane,
                       'ts': 1e6 * (begin_s + task.start_s), 'dur': 1e6 * (task.end_s - task.start_s),
                       'args': {'bytes': task.size} if task.size else {}})
    return events


def draw_gantt(tasks: Sequence[SimulatedTask], picture: str, title: str = '',
               names: Optional[Mapping[Where, str]] = None) -> None:
    """Draw a simulated step: a row for each rank and link, colours by kind of task, labels for long tasks.

    Parameters
    ----------
    tasks : sequence of SimulatedTask
    picture : str
        The name of the file; its ending determines the format.
    title : str, optional
        By default the time of the step.
    names : dict of int or str to str, optional
        Names of ranks and links.

    Raises
    ------
    InputError
        There are no tasks, a task has an unknown kind, matplotlib is not installed, or the file cannot be written.
    """
    _check(tasks)
    rows = by_place(tasks)
    end = max(task.end_s for task in tasks)
    title = title or 'simulated step: ' + seconds_text(end)
    if len(rows) > _MAX_ROWS:
        title += '; %d of %d ranks and links' % (_MAX_ROWS, len(rows))
        rows = dict(list(rows.items())[:_MAX_ROWS])
    figure = new_figure(12, 1.5 + 0.4 * len(rows))
    axes = figure.add_subplot()
    colors = {group: 'C%d' % number for number, group in enumerate(TASK_GROUPS)}
    for row, row_tasks in enumerate(rows.values()):
        for group in TASK_GROUPS:
            bars = [(1000 * task.start_s, 1000 * (task.end_s - task.start_s)) for task in row_tasks
                    if TASK_KINDS[task.kind].group == group]
            if bars:
                axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colors[group], edgecolor='white', linewidth=0.3)
        for task in row_tasks:
            share = (task.end_s - task.start_s) / end if end else 0.0
            if share >= _LABELLED_SHARE:
                label = _shortened(task.label, int(share * _LABEL_CHARACTERS))
                axes.annotate(label, (500 * (task.start_s + task.end_s), row), ha='center', va='center',
                              fontsize='xx-small', clip_on=True)
    axes.set_yticks(range(len(rows)), [_name_of(where, names) for where in rows], fontsize='small')
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1000 * end or 1)
    axes.set_xlabel('time (ms)')
    axes.set_title(title, fontsize='medium')
    shown = {TASK_KINDS[task.kind].group for task in tasks}
    for group in [group for group in TASK_GROUPS if group in shown]:
        axes.barh([0], [0], color=colors[group], label=TASK_GROUPS[group])
    axes.legend(fontsize='x-small', loc='upper left', bbox_to_anchor=(1, 1))
    save_figure(figure, picture)


def _shortened(label: str, length: int) -> str:
    return label if len(label) <= length else label[:length - 1] + '…'


def _name_of(where: Where, names: Optional[Mapping[Where, str]]) -> str:
    if names is not None and where in names:
        return names[where]
    return 'worker %d' % where if isinstance(where, int) else where


def _check(tasks: Sequence[SimulatedTask]) -> None:
    if not tasks:
        raise InputError('timeline: there are no tasks: simulate a step first')
    unknown = sorted({task.kind for task in tasks} - set(TASK_KINDS))
    if unknown:
        raise InputError('timeline: %r is not a kind of task: give one of %s' % (unknown[0], ', '.join(TASK_KINDS)))
