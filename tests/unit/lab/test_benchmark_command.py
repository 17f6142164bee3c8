"""The command line of the benchmark, and runs that fail."""
import json
import os
import re
import sys

import pytest
from lab.launchers import REPOSITORY

pytestmark = pytest.mark.both_pythons

sys.path[:0] = [str(REPOSITORY / 'scripts'), str(REPOSITORY / 'examples')]

from lab import emulation  # noqa: E402
from lab.benchmark import (  # noqa: E402
    cli,
    exchange,
    launching,
    models,
)
from lab.processes import JobFailed  # noqa: E402

from ...helpers.benchmark_rounds import round_figures  # noqa: E402


@pytest.mark.parametrize('argv', [['--contenders', 'hybrid,mpi'], ['--hosts', '0'], ['--mbit', '-1'],
                                  ['--workload', 'vgg'], ['--env', 'NAME'], ['--steps', 'x'], ['--steps', '0'],
                                  ['--workers', '2,4'], ['--steps', '10,20'], ['--width-scale', '2'],
                                  ['--width-scale', '0'], ['--mbit', 'inf'], ['--hosts', '2,27'],
                                  ['--mbit', '100,0'], ['--json', '.'], ['--json', 'missing/file'],
                                  ['--plot', 'missing/file.png']])
def test_wrong_arguments(argv, capsys):
    with pytest.raises(SystemExit):
        cli.parse(argv)
    assert argv[0] in capsys.readouterr().err


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


class Kind:
    """Contenders that need no jobs; with three hosts they fail."""

    unit = 'words'

    def skipped(self, hosts):
        """None."""
        return {}

    def describe(self):
        """No model."""
        return 'nothing'

    def bound(self, hosts, mbit):
        """No bound."""

    def units(self, hosts):
        """A word for each host."""
        return hosts

    def told(self, contenders):
        """Nothing else."""
        return []

    def run(self, testbed, hosts, contender, check):
        """A round."""
        if hosts == 3:
            raise JobFailed('three hosts are too many')
        return round_figures(1.0, [1.0], None)


def test_a_failure_loses_no_run_before_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, 'Exchange', lambda args: Kind())
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
