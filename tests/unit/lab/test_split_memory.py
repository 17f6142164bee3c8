"""The measurement of memory of a split Transformer, with a small one in this process."""
import mmap

from lab import reports, split_memory


def test_one_process_trains_and_reports(tmp_path, monkeypatch):
    monkeypatch.setenv(reports.DIRECTORY, str(tmp_path))
    for name, value in (('WORDS', 20), ('LAYERS', 1), ('UNITS', 8), ('HEADS', 2), ('TIMES', 4), ('BATCH', 2)):
        monkeypatch.setattr(split_memory, name, value)
    split_memory.work({})
    results = reports.read_reports(tmp_path)
    assert results[0]['weights'] == results[0]['state'] == 1
    assert results[0]['losses'][1] < results[0]['losses'][0]
    assert 'one process' in split_memory._line('one process', results)


def test_the_peak_counts_from_the_last_restart():
    peak = split_memory.Peak()
    with mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE) as grown:  # an array may take memory of freed ones
        for _ in range(64):
            grown.write(b'1' * (1 << 20))
        assert peak.size_bytes > 1 << 25
    peak.restart()
    assert peak.size_bytes < 1 << 25


def test_the_line_has_the_worker_that_holds_most():
    worker = {'weights': 0.25, 'state': 0.25, 'made': 1000000, 'trains': 2000000, 'losses': [4.0, 2.0]}
    line = split_memory._line('a plan', {0: worker, 1: dict(worker, weights=0.26, trains=3000000)})
    assert 'weights 0.260, state 0.250, while it is made 1 MB, while it trains 3 MB, losses 1.00000 0.50000' in line
