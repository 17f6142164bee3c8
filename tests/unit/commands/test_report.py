"""mxhybrid report: reading metrics files, words, curves and pictures."""
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab.launchers import REPOSITORY

from mxhybrid.base.errors import InputError
from mxhybrid.commands import console, metrics_file
from mxhybrid.commands.main import main
from mxhybrid.commands.report import choose, lines_of, percentile

#: Recorded with the minimal example, 2 workers and 1 server under horovodrun.
RECORDED = Path(__file__).parent / 'recorded' / 'steps.jsonl'


def record(step, store=0, seconds=0.01, routes=None, tables=None, **more):
    """Return a line as a job writes it."""
    found = {'step': step, 'store': store, 'wall': 1e9 + step, 'seconds': seconds, 'store_seconds': seconds / 2,
             'routes': routes or {}, 'alpha': dict.fromkeys(tables or {}, 0.5), 'tables': tables or {}}
    return json.dumps(dict(found, **more))


def table(route, pushed=100, pulled=50):
    """Return the entry of a table in a record."""
    return {'route': route, 'rows': 5, 'pushed': pushed, 'pulled': pulled}


# ------------------------------------------------------------------------------------------------------ reading

def test_runs_and_stores_are_told_apart():
    lines = [record(1), record(1, store=1), record(2), record(2, store=1), record(1), record(2), record(1, store=1)]
    runs, broken = metrics_file.parse(lines, 'file')
    assert [(run.store, [step['step'] for step in run.steps]) for run in runs] == [
        (0, [1, 2]), (1, [1, 2]), (0, [1, 2]), (1, [1])]
    assert broken == 0


def test_the_last_line_may_be_half_a_line():
    line = record(2)
    for cut in (1, 20, len(line) - 1):
        runs, broken = metrics_file.parse([record(1), line[:cut]], 'file')
        assert len(runs[0].steps) == 1 and broken == 1
    assert metrics_file.parse([record(1), ''], 'file')[1] == 0


def test_a_job_goes_on_behind_one_that_was_killed():
    runs, broken = metrics_file.parse([record(1), record(2)[:30] + record(1), record(2)], 'file')
    assert [[step['step'] for step in run.steps] for run in runs] == [[1], [1, 2]] and broken == 1


def test_commits_of_an_elastic_job_are_summed_up():
    lines = [record(1), record(2, commit={'seconds': 0.25, 'bytes': 0, 'generation': 3}), record(3),
             record(4, commit={'seconds': 0.75, 'bytes': 2000000, 'generation': 3})]
    runs, _ = metrics_file.parse(lines, 'file')
    assert 'commits     2 in generation 3: training waited for 500 ms, 750 ms at most; the largest had 2.0 MB' in (
        lines_of(runs[0], True, 100))


@pytest.mark.parametrize('lines, words', [
    ([record(1), '{"step": 2', '{}'], 'line 3'), (['[]'], 'line 1'), (['{"step": 1}'], 'line 1'),
    ([record(1, network={'push': {'sent': 3}})], 'line 1'), ([record(1, commit={'bytes': 3})], 'line 1'),
    ([record(1, routes={'allreduce': 3})], 'line 1'), ([record(1, wall='x')], 'line 1'), (['not json'], 'no step'),
    ([record(1, tables={'words': {'rows': 1, 'pushed': 1, 'pulled': 1}})], 'line 1')])
def test_other_files_are_refused(lines, words):
    with pytest.raises(InputError, match=words):
        metrics_file.parse(lines, 'file')


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / 'empty').write_text('')
    with pytest.raises(InputError, match='no steps yet'):
        metrics_file.read(str(tmp_path / 'empty'))
    with pytest.raises(InputError, match='No such file'):
        metrics_file.read(str(tmp_path / 'none'))
    (tmp_path / 'binary').write_bytes(b'\x89PNG\xff\n\xff')
    with pytest.raises(InputError, match='no step in it: give a file'):
        metrics_file.read(str(tmp_path / 'binary'))


def test_tables_over_steps():
    lines = [record(1, tables={'a': table('server gradients'), 'b': table('server weights', 9000)}),
             record(2, tables={'a': table('on-demand rows', 300)}),
             record(3, tables={'a': table('on-demand rows', 500)})]
    (run,), _ = metrics_file.parse(lines, 'file')
    b, a = run.tables()
    assert (a.name, a.moved, a.routes()) == ('a', [150, 350, 550], [(1, 'server gradients'), (2, 'on-demand rows')])
    assert (b.name, b.moved, b.routes()) == ('b', [9050, 0, 0], [(1, 'server weights')])
    assert (a.mean('pushed'), b.mean('pushed'), a.alpha) == (300, 9000, 0.5)


# ------------------------------------------------------------------------------------------------------ showing

def test_numbers_in_the_report():
    moved = {'rows': 1, 'pushed': 2000, 'pulled': 1000}
    lines = [record(step, seconds=9 if step == 1 else 0.02, tables={'words': table('on-demand rows', 2000, 1000)},
                    routes={'on-demand rows': moved, 'allreduce': dict(moved, pushed=0)}) for step in range(1, 5)]
    (run,), _ = metrics_file.parse(lines, 'file')
    text = '\n'.join(lines_of(run, True, 80))
    assert 'steps 1 to 4 of store 0' in text
    assert 'median 20 ms' in text and '50% of all time' in text  # the first step does not count as a step's time
    assert '3.0 kB' in text and '1.0 kB' in text
    row = text.splitlines()[-1].split()
    assert row[:7] == ['words', '5', '50%', '2.0', 'kB', '1.0', 'kB'] and '75%' in row
    assert row[-2:] == ['on-demand', 'rows']
    text.encode('ascii')


def test_network_bytes_are_shown_where_they_were_counted():
    routes = {'allreduce': {'rows': 2, 'pushed': 8, 'pulled': 8}}
    moved = {'allreduce': {'sent': 2000, 'received': 3000}, 'pull request': {'sent': 400, 'received': 1000}}
    (run,), _ = metrics_file.parse([record(1, routes=routes), record(2, routes=routes, network=moved)], 'file')
    assert run.network()['pull request'] == {'sent': [0, 400], 'received': [0, 1000]}
    lines = lines_of(run, True, 80)
    at, = [number for number, line in enumerate(lines) if line.startswith('network')]
    assert lines[at].endswith('received 2.0 kB')
    assert lines[at + 1].split()[0] == 'allreduce' and '1.0 kB' in lines[at + 1]
    assert lines[at + 2].split()[:2] == ['pull', 'request'] and '200 B' in lines[at + 2]
    nothing = {'allreduce': {'sent': 0, 'received': 0}}  # on one host
    (run,), _ = metrics_file.parse([record(1, routes=routes, network=nothing)], 'file')
    assert 'network' not in '\n'.join(lines_of(run, True, 80))


def test_reports_without_bytes_or_tables():
    one, dense = [metrics_file.parse([record(1, routes=routes)], 'file')[0][0] for routes in (
        {'local': {'rows': 0, 'pushed': 0, 'pulled': 0}}, {'allreduce': {'rows': 2, 'pushed': 8, 'pulled': 8}})]
    assert 'nothing was sent' in '\n'.join(lines_of(one, True, 80))
    assert 'all parameters are dense' in '\n'.join(lines_of(dense, True, 80))


def test_runs_are_chosen():
    runs = [metrics_file.Run(0), metrics_file.Run(1)]
    assert choose(runs, None) is runs[1] and choose(runs, 1) is runs[0]
    with pytest.raises(InputError, match='--run 3.*1 to 2'):
        choose(runs, 3)


def test_percentile():
    assert [percentile([3, 1, 2], percent) for percent in (0, 50, 100)] == [1, 2, 3]


@pytest.mark.parametrize('plain', [False, True])
def test_curves_and_bars(plain):
    line = console.curve([0, 1, 2, 4], 10, plain)
    assert len(line) == 4 and len(set(line)) == 4
    assert len(console.curve(range(1000), 40, plain)) == 40
    assert console.curve([0, 0], 9, plain) in ('__', '▁▁') and console.curve([], 9, plain) == ''
    full = console.bar(1.0, 8, plain)
    assert len(full) == 8 and console.bar(7.0, 8, plain) == full and console.bar(0, 8, plain) == ''
    assert len(console.bar(1e-9, 8, plain)) == 1 and len(console.bar(0.5, 8, plain)) == 4
    if plain:
        (line + full).encode('ascii')


def test_encodings_that_show_all_characters():
    for encoding, shown in (('utf-8', True), ('ascii', False), ('latin-1', False), (None, False)):
        stream = io.StringIO() if encoding is None else io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        assert console.shows(stream) is shown


# ---------------------------------------------------------------------------------------------------- recorded

def test_a_recorded_job(capsys):
    assert main(['report', str(RECORDED), '--ascii']) == 0
    text = capsys.readouterr().out
    assert 'steps 1 to 50 of store 0 on worker 0' in text
    words, bins = (next(line for line in text.splitlines() if line.startswith(name))
                   for name in ('net_words_weight', 'net_bins_weight'))
    assert words.endswith('server weights') and 'server gradients, on-demand rows from step ' in bins


@pytest.mark.parametrize('encoding, drawn', [('utf-8', True), ('ascii', False)])
def test_the_terminal_gets_what_it_can_show(encoding, drawn):
    env = dict(os.environ, PYTHONPATH=str(REPOSITORY), PYTHONIOENCODING=encoding, COLUMNS='90')
    shown = subprocess.run([sys.executable, '-m', 'mxhybrid', 'report', str(RECORDED)], env=env, timeout=60,
                           stdout=subprocess.PIPE, check=True).stdout.decode(encoding)
    assert ('▁' in shown) == drawn and ('█' in shown) == drawn
    assert max(len(line) for line in shown.splitlines()[3:9]) <= 90


def test_a_reader_that_leaves():
    env = dict(os.environ, PYTHONPATH=str(REPOSITORY))
    command = '%s -m mxhybrid report %s 2>&1 >&3 | cat >&2; exit ${PIPESTATUS[0]}' % (sys.executable, RECORDED)
    closed, writer = os.pipe()
    os.close(closed)
    result = subprocess.run(['bash', '-c', command.replace('>&3', '>&%d' % writer)], env=env, pass_fds=[writer],
                            stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b'')


def test_pictures(tmp_path, capsys, monkeypatch):
    picture = tmp_path / 'steps.png'
    status = main(['report', str(RECORDED), '--png', str(picture)])
    assert status == 0 and picture.read_bytes().startswith(b'\x89PNG')
    assert main(['report', str(RECORDED), '--png', str(tmp_path / 'none' / 'x.png')]) == 1
    assert 'cannot be written' in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)  # as if it were not installed
    assert main(['report', str(RECORDED), '--png', str(picture)]) == 1
    assert 'pip install matplotlib' in capsys.readouterr().err
