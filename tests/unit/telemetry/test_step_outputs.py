"""The files and writers that get the numbers of each step."""
import json
import sys

import pytest

from mxhybrid.telemetry import step_outputs as metrics
from mxhybrid.telemetry.step_outputs import JsonLines, StepOutputs, TensorBoard, numbers_by_tag

pytestmark = pytest.mark.both_pythons

RECORD = {'step': 3, 'store': 0, 'wall': 1.0, 'seconds': 0.5, 'store_seconds': 0.25,
          'routes': {'server weights': {'rows': 2, 'pushed': 8, 'pulled': 9}}, 'alpha': {'words': 0.01}}

WRITER = '''
class SummaryWriter:
    def __init__(self, directory, flush_secs):
        self.file = open(directory + '/events', 'w')
    def add_scalar(self, tag, value, step):
        print(tag, value, step, file=self.file)
    def close(self):
        self.file.close()
'''


@pytest.fixture
def only_writer(tmp_path, monkeypatch):
    """Makes all writers but a plain one of the given name impossible to import."""
    def make(name):
        for known in metrics.WRITERS:
            monkeypatch.setitem(sys.modules, known, None)
        if name is not None:
            monkeypatch.delitem(sys.modules, name)
            (tmp_path / (name + '.py')).write_text(WRITER)
            monkeypatch.syspath_prepend(str(tmp_path))
    yield make
    for known in metrics.WRITERS:
        sys.modules.pop(known, None)


def test_lines_are_appended_and_can_be_read_at_once(tmp_path):
    path = tmp_path / 'metrics.jsonl'
    path.write_text('{"step": 0}\n')
    lines = JsonLines(str(path))
    lines.write(RECORD)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{'step': 0}, RECORD]
    lines.close()


def test_the_numbers_of_a_record():
    assert numbers_by_tag(RECORD) == {
        'mxhybrid/seconds': 0.5, 'mxhybrid/store_seconds': 0.25, 'mxhybrid/rows/server_weights': 2,
        'mxhybrid/pushed/server_weights': 8, 'mxhybrid/pulled/server_weights': 9, 'mxhybrid/alpha/words': 0.01}
    assert 'mxhybrid2/seconds' in numbers_by_tag(dict(RECORD, store=2))
    network = numbers_by_tag(dict(RECORD, network={'pull request': {'sent': 3, 'received': 4}}))
    assert network.items() - numbers_by_tag(RECORD).items() == {('mxhybrid/network_sent/pull_request', 3),
                                                               ('mxhybrid/network_received/pull_request', 4)}


@pytest.mark.parametrize('name', ['tensorboardX', 'mxboard'])
def test_tensorboard_takes_the_writer_that_is_installed(tmp_path, only_writer, name):
    only_writer(name)
    board = TensorBoard(str(tmp_path))
    board.write(RECORD)
    board.close()
    lines = (tmp_path / 'events').read_text().splitlines()
    assert 'mxhybrid/seconds 0.5 3' in lines and len(lines) == len(numbers_by_tag(RECORD))


def test_without_a_writer_the_error_names_one(tmp_path, only_writer):
    only_writer(None)
    with pytest.raises(ImportError, match='pip install tensorboardX'):
        TensorBoard(str(tmp_path))


def test_an_output_that_fails_is_given_up_alone(tmp_path, only_writer, caplog):
    only_writer('mxboard')
    board, broken, good = TensorBoard(str(tmp_path)), JsonLines(str(tmp_path / 'bad')), tmp_path / 'good'
    board._writer.add_scalar = None
    broken._file.close()
    outputs = StepOutputs({'metrics': broken, 'tensorboard': board, 'others': JsonLines(str(good))})
    outputs.write(RECORD)
    outputs.write(RECORD)
    outputs.close()
    outputs.close()
    assert len(good.read_text().splitlines()) == 2
    assert [text.partition(' any more')[0] for text in caplog.messages] == [
        'metrics is not written', 'tensorboard is not written']
