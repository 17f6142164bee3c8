"""The command line of the benchmark, and runs that fail."""
import json
import os
import re
import sys

import pytest
from lab import emulation
from lab.benchmark import cli, exchange, launching, models
from lab.benchmark.comparison import Comparison
from lab.processes import JobFailed

from .test_benchmark_report import round_figures

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize('arguments, words', [
    ('--contenders hybrid,mpi', 'mpi: choose from hybrid, '), ('--hosts 0', 'invalid'), ('--mbit -1', 'invalid'),
    ('--workload vgg', 'invalid choice'), ('--env NAME', 'invalid'), ('--steps x', 'invalid'), ('--steps 0', 'invalid'),
    ('--workers 2,4', 'invalid'), ('--steps 10,20', 'invalid'), ('--mbit inf', 'invalid'), ('--mbit 100,0', 'invalid'),
    ('--width-scale 2', '2 is not above 0 and at most 1'), ('--width-scale 0', '0 is not above 0 and at most 1'),
    ('--hosts 2,27', '27: at most 26 hosts are emulated'), ('--json .', '. cannot be written'),
    ('--json missing/file', 'missing/file cannot be written'), ('--plot missing/file.png', 'cannot be written'),
    ('--from saved.json', 'it needs --plot'), ('--no-network --share 0.2', 'it needs emulated hosts'),
    ('--share 0', '0 is not above 0 and at most 1'), ('--share 2', '2 is not above 0 and at most 1'),
    ('--no-network --links links.png', 'it needs emulated hosts'),
    ('--workload tables --links links.png', 'it needs emulated hosts'),
    ('--workload pipeline --micro-batches 3', '3 does not divide the 16 samples of a step: give 1, 2, 4, 8 or 16'),
    ('--workload pipeline --micro-batches 0', 'invalid'),
    ('--parts start,speed', 'speed: choose from start, memory, hash, collection, files, checkpoint, torch'),
    ('--parts ,', 'none: choose from start'), ('--touched 0', 'invalid'), ('--ids -1', 'invalid'),
    ('--torch-rows x', 'invalid')])
def test_wrong_arguments(arguments, words, capsys):
    with pytest.raises(SystemExit):
        cli.parse(arguments.split())
    refused, = re.findall('error: argument %s: (.*)' % arguments.split()[-2], capsys.readouterr().err)
    assert words in refused


def test_arguments():
    args = cli.parse(['--hosts', '2,4', '--contenders', 'hybrid, dist_sync', '--env', 'A=b=c'])
    assert args.hosts == [2, 4] and args.contenders == ['hybrid', 'dist_sync'] and args.env == [['A', 'b=c']]


def test_as_many_hosts_as_wanted_where_none_is_emulated():
    assert cli.parse(['--hosts', '27', '--no-network']).hosts == [27]


def test_dense_tables_are_left_out_where_memory_is_short(monkeypatch):
    args = cli.parse(['--workload', 'recsys', '--no-network', '--hosts', '2', '--workers', '3',
                      '--width-scale', '0.5'])
    needed = 2 * 6 * exchange.Exchange(args)._workload.table_bytes
    assert exchange.available_bytes() > 1 << 20
    for free, left_out in ((2 * needed + 1, False), (2 * needed - 1, True)):
        monkeypatch.setattr(exchange, 'available_bytes', lambda free=free: free)
        assert ('horovod_dense' in exchange.Exchange(args).skipped(2)) is left_out


def test_torchrec_trains_recommenders_where_it_is_installed(tmp_path):
    def reason(kind, workload, *argv):
        args = cli.parse(['--workload', workload, '--contenders', 'hybrid,torchrec', '--width-scale', '0.125', *argv])
        return kind(args).skipped(1).get('torchrec')

    assert reason(models.Models, 'train_dlrm') == 'no --torch-python was given'
    missing = str(tmp_path / 'python')
    assert 'No such file' in reason(models.Models, 'train_dlrm', '--torch-python', missing)
    assert reason(models.Models, 'train_dlrm', '--torch-python', 'false').endswith('it cannot import torchrec')
    assert reason(models.Models, 'train_dlrm', '--torch-python', 'true') is None
    for kind, workload in ((models.Models, 'train_resnet50'), (exchange.Exchange, 'lm1b')):
        assert reason(kind, workload, '--torch-python', 'true') == 'it only trains recommenders'
    assert launching.torch_missing(sys.executable, 'json', 'numpy') is None


def test_models_have_their_published_width_where_memory_allows(monkeypatch):
    """Halve the width until the job fits, at most three times; it is the same for all numbers of hosts."""
    args = cli.parse(['--hosts', '1,4', '--workers', '2'])
    widths = []
    for free in (1e12, 12e9, 7e9, 1e9):
        monkeypatch.setattr(exchange, 'available_bytes', lambda free=free: free)
        kind = exchange.Exchange(args)
        widths.append(kind.width)
        assert kind._workload.tables[0].width == 512 * kind.width
    assert widths == [1, 1 / 2, 1 / 4, 1 / 8]
    assert exchange.Exchange(cli.parse(['--width-scale', '0.75'])).width == 0.75


class WithoutJobs(Comparison):
    """Contenders that need no jobs; with three hosts they fail."""

    worker_units = 1

    def describe(self):
        return 'nothing'

    def run(self, testbed, hosts, contender, check):
        if hosts == 3:
            raise JobFailed('three hosts are too many')
        return round_figures(1.0, [1.0], None)


def test_a_failure_loses_no_run_before_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, 'Exchange', WithoutJobs)
    file = tmp_path / 'bench.json'
    file.write_text('of an earlier benchmark')
    assert cli.main(['--hosts', '1,2,3', '--no-network', '--contenders', 'hybrid', '--json', str(file)]) == 1
    assert 'three hosts' in capsys.readouterr().err
    assert [run['hosts'] for run in json.loads(file.read_text())['runs']] == [1, 2]
    assert os.listdir(str(tmp_path)) == ['bench.json']


def test_without_root_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr('os.geteuid', lambda: 1000)
    assert cli.main(['--hosts', '2', '--contenders', 'hybrid']) == 1
    assert re.search('needs root.*--no-network', capsys.readouterr().err, re.DOTALL)


def test_a_missing_tool_is_named_by_its_package(monkeypatch):
    monkeypatch.setattr('os.geteuid', lambda: 0)
    with pytest.raises(emulation.EmulationError, match='this needs Debian packages.* some-package$'):
        emulation.find_tools({'no-such-tool': 'some-package', 'sh': 'dash'}, 'this')
