"""The benchmark of starts: its table."""
import argparse

from lab.benchmark import cli, starts


def test_the_table_has_medians_and_ratios_to_horovod(monkeypatch, capsys):
    readings = {'hybrid': iter([(5.0, 9.0), (7.0, 8.0), (6.0, 7.0)]),
                'horovod': iter([(4.0, 4.0), (3.0, 5.0), (9.0, 3.0)])}
    monkeypatch.setattr(starts, 'measure', lambda args, name: dict(zip(('seconds', 'cpu_s'), next(readings[name]))))
    runs = starts.run(argparse.Namespace(workers=6, rounds=3), lambda text: None)
    assert len(runs) == 6 and runs[0] == {'seconds': 5.0, 'cpu_s': 9.0, 'contender': 'hybrid'}
    lines = capsys.readouterr().out.splitlines()
    assert '6 workers' in lines[0]
    hybrid, = [line for line in lines if line.startswith('hybrid')]
    assert hybrid.split() == ['hybrid', '6.0', '8.0', '1.50', 'x', '2.00', 'x']


def test_the_command_line_takes_it(monkeypatch):
    monkeypatch.setattr(cli, 'run_starts', lambda args, say: [{'workers': args.workers}])
    assert cli.main(['--workload', 'start', '--workers', '3']) == 0
