"""The records that settings request, in a job of one process."""
import json
import os
import subprocess
import sys

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.base.settings import Settings
from mxhybrid.telemetry import step_outputs as metrics
from mxhybrid.telemetry.recorder import OFF
from mxhybrid.telemetry.session import Session

pytestmark = pytest.mark.both_pythons

REPOSITORY = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..', '..'))

SCRIPT = """
import os, sys
import mxnet as mx
import mxhybrid
from mxnet import autograd, gluon
store = mxhybrid.create(trace='trace.json', metrics='metrics.jsonl')
if sys.argv[1] == 'fork' and os.fork() == 0:
    sys.exit(0)  # its exit must not write the file
if sys.argv[1] == 'fork':
    os.wait()
    assert not os.path.exists('trace.json')
net = gluon.contrib.nn.SparseEmbedding(10, 2)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore=store)
for _ in range(3):
    with autograd.record():
        loss = net(mx.nd.array([1, 4, 4])).sum()
    loss.backward()
    trainer.step(3)
if sys.argv[1] == 'raise':
    raise ValueError('deliberately wrong')
"""


def test_nothing_asked_for_nothing_done():
    telemetry = Session()
    assert telemetry.open(Settings(), 0) == {'trace': False}
    telemetry.agree({'trace': False}, 0)
    assert telemetry.trace is OFF and not telemetry.new_meter({}).enabled
    telemetry.fail('text')
    telemetry.wait()
    telemetry.discard()


def test_only_rank_0_opens_files(tmp_path):
    telemetry = Session()
    assert telemetry.open(Settings(trace=str(tmp_path / 'missing' / 'x'), metrics='/no/such'), 1) == {}
    telemetry.agree({'trace': True}, 1)
    assert telemetry.trace.enabled and telemetry.trace.name.startswith('worker 1 (host ')
    assert telemetry.new_meter({}).enabled


@pytest.mark.parametrize('name, path, words', [
    ('trace', 'missing/x.json', ['MXHYBRID_TRACE=', 'No such file or directory', 'exists and is writable']),
    ('trace', '.', ['MXHYBRID_TRACE=', 'it is a directory']),
    ('metrics', 'missing/x.jsonl', ['MXHYBRID_METRICS=', 'No such file or directory']),
    ('metrics', '.', ['MXHYBRID_METRICS=', 'Is a directory']),
])
def test_an_unwritable_place_is_refused_everywhere(tmp_path, monkeypatch, name, path, words):
    monkeypatch.chdir(tmp_path)
    settings = Settings(**dict({'trace': 'good.json'}, **{name: path}))
    plan = json.loads(json.dumps(Session().open(settings, 0)))
    for rank in (0, 1):
        with pytest.raises(SettingError) as caught:
            Session().agree(plan, rank)
        for word in words + [repr(path)]:
            assert word in str(caught.value)
    assert os.listdir(str(tmp_path)) == []


def test_a_broken_writer_is_named_and_closed(tmp_path, monkeypatch):
    (tmp_path / 'tensorboardX.py').write_text('raise TypeError("Descriptors cannot be created directly.\\nIf ...")')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'tensorboardX', raising=False)
    monkeypatch.setattr(metrics.JsonLines, 'close', lambda self: (closed.append(self), self._file.close()))
    directory, closed = tmp_path / 'outputs', []
    directory.mkdir()
    settings = Settings(**{name: str(directory / name) for name in ('trace', 'metrics', 'tensorboard')})
    problem = Session().open(settings, 0)['problem']
    for words in ('MXHYBRID_TENSORBOARD=', 'TypeError: Descriptors cannot be created directly.:', 'leave the setting'):
        assert words in problem
    assert 'If ...' not in problem
    assert os.listdir(str(directory)) == ['metrics'] and len(closed) == 1


def test_a_problem_fits_into_an_address_record():
    plan = Session().open(Settings(trace='/\u20ac"' * 1000), 0)
    assert len(json.dumps(plan)) < 600 and 'MXHYBRID_TRACE' in plan['problem']
    assert 'cannot be written' in plan['problem']


@pytest.mark.parametrize('how, status', [('end', 0), ('fork', 0), ('raise', 1)])
def test_one_process(tmp_path, how, status):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(('MXHYBRID_', 'HOROVOD_', 'DMLC_'))}
    result = subprocess.run([sys.executable, '-c', SCRIPT, how], cwd=str(tmp_path), stderr=subprocess.PIPE,
                            env=dict(environment, PYTHONPATH=REPOSITORY), timeout=50)
    assert result.returncode == status, result.stderr.decode()
    events = json.loads((tmp_path / 'trace.json').read_text())
    names = [event['name'] for event in events if event['ph'] == 'X']
    weight = next(name for name in names if name.startswith('push ')).partition(' ')[2]
    assert [names.count(name) for name in ('push ' + weight, 'row_sparse_pull ' + weight)] == [3, 3]
    assert names.count('forward/backward') == 3
    assert {'step 1', 'step 2', 'step 3'} <= set(names)
    lines = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
    assert [(line['step'], line['alpha']) for line in lines] == [(step, {weight: 0.2}) for step in (1, 2, 3)]
    assert sorted(os.listdir(str(tmp_path))) == ['metrics.jsonl', 'trace.json']
