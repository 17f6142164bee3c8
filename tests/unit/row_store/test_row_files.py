"""Files of row stores: saves, deltas, and rows that are in files."""
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

from mxhybrid.base.errors import CheckpointError, InputError, JobError
from mxhybrid.row_store import row_files
from mxhybrid.row_store.row_store import RowStore, partition_of

from ...helpers.nameless_files import nameless_files
from ...helpers.programs import run_program
from ...helpers.row_stores import FIRST, SGD, SPECIAL, first_rows, unique

HERE = Path(__file__).parent


def saved(path):
    """Return the arrays of a folder by name."""
    return {file.stem: np.load(str(file)) for file in path.iterdir()}


def assert_same_arrays(first, second):
    arrays, others = saved(first), saved(second)
    assert set(arrays) == set(others)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name])


@pytest.mark.both_pythons
@pytest.mark.parametrize('portion', [1, 7, 1 << 20])
def test_save_and_load(tmp_path, monkeypatch, portion):
    monkeypatch.setattr(row_files, '_PORTION_ROWS', portion)
    store, *parts = (RowStore(3, 'float64', FIRST, capacity=10000) for _ in range(4))
    for each in (store, *parts):
        each.set_state_widths([3, 1])
    keys = unique(np.concatenate([SPECIAL, np.random.RandomState(0).randint(-1 << 62, 1 << 62, 200), np.arange(99)]))
    random = np.random.RandomState(1)
    store.assign(keys, random.standard_normal((len(keys), 3)))
    states = [np.zeros((len(keys), width)) for width in (3, 1)]
    for slot, state in enumerate(states):
        state[::2 + slot] = random.standard_normal(state[::2 + slot].shape)
        store.assign_state(slot, keys[::2 + slot], state[::2 + slot])
    store.erase(keys[::7])
    answer = store.save(str(tmp_path / 'whole'))
    arrays = saved(tmp_path / 'whole')
    left = np.setdiff1d(keys, keys[::7])
    assert answer['rows'] == len(left) and answer['whole'] and answer['removed'] == 0
    contents = {file.stem: file.read_bytes() for file in (tmp_path / 'whole').iterdir()}
    assert answer['bytes'] == sum(map(len, contents.values()))
    assert answer['files'] == {name: {'bytes': len(content), 'xxh3_128': xxhash.xxh3_128_hexdigest(content)}
                               for name, content in contents.items()}
    assert set(arrays) == {'keys', 'rows', 'state0', 'state1', 'used'}
    np.testing.assert_array_equal(arrays['keys'], left)
    np.testing.assert_array_equal(arrays['rows'], store.read(left))
    for slot in range(2):
        np.testing.assert_array_equal(arrays['state%d' % slot], states[slot][np.searchsorted(keys, left)])
    for number, part in enumerate(parts):
        mine = left[partition_of(left, 3) == number]
        assert part.load(str(tmp_path / 'whole'), number, 3) == len(part) == len(mine)
        np.testing.assert_array_equal(part.read(mine), store.read(mine))
        np.testing.assert_array_equal(part.read_state(1, mine), states[1][np.searchsorted(keys, mine)])


@pytest.mark.parametrize('seed', range(5))
def test_deltas(tmp_path, seed):
    random = np.random.RandomState(seed)
    store, mark, folders = RowStore(2, 'float32', FIRST, capacity=300, expire_after=20), None, []
    for save in range(6):
        for _ in range(8):
            keys = unique(np.minimum(random.zipf(1.1, 60), 1 << 40))
            store.update('sgd', SGD, keys, random.standard_normal((len(keys), 2)))
        store.erase([1, 2])
        if save % 2:
            store.assign([2], [[save, save]])
        folders.append(str(tmp_path / str(save)))
        answer = store.save(folders[-1], mark)
        assert answer['whole'] == (mark is None)
        mark = answer['mark']
        assert save == 0 or not set(saved(tmp_path / str(save))['removed']) & set(saved(tmp_path / str(save))['keys'])
    loaded = RowStore(2, 'float32', FIRST, capacity=300, expire_after=20)
    for folder in folders:
        loaded.load(folder)
    assert len(loaded) == len(store)
    store.save(str(tmp_path / 'store'))
    loaded.save(str(tmp_path / 'loaded'))
    assert_same_arrays(tmp_path / 'store', tmp_path / 'loaded')


#: Saves more bytes than a file may have, and prints the error and the number of threads that are left.
SAVE = """
import resource, sys, threading
import numpy as np
from mxhybrid.base.errors import CheckpointError
from mxhybrid.row_store.row_store import RowStore
store = RowStore(64)
store.assign(np.arange(1 << 18), np.ones((1 << 18, 64)))
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
try:
    store.save(sys.argv[1])
except CheckpointError as error:
    print(error)
print(threading.active_count())
"""


@pytest.mark.both_pythons
def test_save_to_a_full_disk_is_an_error(tmp_path):
    assert run_program(SAVE, tmp_path / 'rows').stdout.splitlines() == [
        'cannot write rows of a dynamic table into %s: File too large. Free space there, or save into another '
        'directory' % (tmp_path / 'rows'), '1']


def test_delta_has_changed_rows_only(tmp_path):
    store = RowStore(2)
    store.update('sgd', SGD, range(1000), np.ones((1000, 2)))
    mark = store.save(str(tmp_path / '0'))['mark']
    assert store.save(str(tmp_path / '1'), mark)['rows'] == 0
    store.update('sgd', SGD, [3, 7], np.ones((2, 2)))
    store.erase([4, 5000])
    answer = store.save(str(tmp_path / '2'), mark)
    assert (answer['rows'], answer['removed'], answer['whole']) == (2, 1, False)
    assert saved(tmp_path / '2')['keys'].tolist() == [3, 7] and saved(tmp_path / '2')['removed'].tolist() == [4]
    mark = answer['mark']
    store.set_state_widths([2])
    assert store.save(str(tmp_path / '3'), mark)['whole']  # all state has changed
    store.clear()
    assert store.save(str(tmp_path / '4'), mark + 1)['whole']  # the removed keys are not known any more


def test_bad_folders_are_refused(tmp_path):
    store = RowStore(2)
    store.assign([1, 2], np.zeros((2, 2)))
    store.save(str(tmp_path / 'rows'))
    with pytest.raises(CheckpointError, match=r'rows.npy has rows of float32 of shape \(2,\), but the table has'):
        RowStore(3).load(str(tmp_path / 'rows'))
    with_state = RowStore(2)
    with_state.set_state_widths([2])
    with pytest.raises(CheckpointError, match='state0.npy'):
        with_state.load(str(tmp_path / 'rows'))
    with pytest.raises(CheckpointError, match='keys.npy'):
        store.load(str(tmp_path / 'nothing'))
    np.save(str(tmp_path / 'rows' / 'keys.npy'), np.arange(3))
    with pytest.raises(CheckpointError, match='different numbers of rows'):
        store.load(str(tmp_path / 'rows'))
    with pytest.raises(InputError, match='since: -1'):
        store.save(str(tmp_path / 'rows'), -1)
    with pytest.raises(CheckpointError, match='cannot write rows'):
        store.save('/dev/null/rows')


def test_a_save_for_which_memory_is_lacking_is_refused(tmp_path, monkeypatch):
    """The system would end a server otherwise; the changes stay known for the next delta."""
    memory, delta, text = tmp_path / 'proc' / 'meminfo', tmp_path / 'delta', 'MemTotal: 9000 kB\nMemAvailable: %d kB\n'
    memory.parent.mkdir()
    store = RowStore(4)
    store.update('sgd', {'lr': 1.0}, np.arange(1000), np.ones((1000, 4)))
    mark = store.save(str(tmp_path / 'whole'))['mark']
    store.update('sgd', {'lr': 1.0}, np.arange(7), np.ones((7, 4)))
    monkeypatch.setattr(row_files, '_ROOT', str(tmp_path))
    memory.write_text(text % 2000)
    with pytest.raises(CheckpointError, match=r'cannot save rows .* takes \d+ bytes of memory, .* but 2048000 are left '
                                              'of the 9216000 of this machine or container. Give it more'):
        store.save(str(delta), mark)
    assert not delta.exists()
    memory.write_text(text % 8000)
    assert store.save(str(delta), mark)['rows'] == 7


def resident_memory():
    """Return the memory of this process, and that of it which is mapped from files, in bytes."""
    fields = dict(line.split(':') for line in Path('/proc/self/status').read_text().splitlines() if ':' in line)
    anonymous, files = (int(fields[name].split()[0]) << 10 for name in ('RssAnon', 'RssFile'))
    return anonymous, files


def test_files_beyond_their_budget(tmp_path):
    """64 times as many bytes as the budget.

    The memory of the process grows by 1.5 budgets, 32 bytes a row and 8 MB for buffers at most.
    """
    width, rows, budget = 64, 1 << 18, 2 << 20
    random = np.random.RandomState(0)
    parts = [np.arange(step * rows // 16, (step + 1) * rows // 16) for step in range(16)]
    parts += [unique(random.randint(0, rows, 20000)) for _ in range(8)]
    gradients = np.ones((20000, width), np.float32)
    expected = np.zeros(rows, np.int64)
    before = resident_memory()
    store = RowStore(width, 'float32', FIRST, directory=str(tmp_path), resident_bytes=budget)
    store.set_state_widths([width])
    for keys in parts:
        store.update('adagrad', {'lr': 1.0, 'rescale': 1.0, 'epsilon': 0.0}, keys, gradients[:len(keys)])
        expected[keys] += 1
        assert store.statistics()['resident_bytes'] <= budget
        anonymous, files = (now - earlier for now, earlier in zip(resident_memory(), before))
        assert files <= 8 * rows + (2 << 20)
        assert anonymous <= 1.5 * budget + 24 * rows + (8 << 20)
    for keys in np.array_split(np.arange(rows), 50):
        steps = np.cumsum(1 / np.sqrt(np.arange(1, 13)))[expected[keys] - 1]
        np.testing.assert_allclose(store.read(keys), first_rows(FIRST, keys, width) - steps[:, None], atol=1e-5)
    statistics = store.statistics()
    row_bytes = 8 + 2 * 4 * width
    assert rows * row_bytes <= statistics['file_bytes'] <= 1.5 * rows * row_bytes
    assert statistics['memory_bytes'] < 24 * rows + (2 << 20)
    store.save(str(tmp_path / 'saved'))
    np.testing.assert_array_equal(np.load(str(tmp_path / 'saved' / 'state0.npy'))[:, 0], expected)
    store.close()
    assert not nameless_files(tmp_path)


def test_rows_in_files_expire_as_in_memory(tmp_path):
    """Rows that leave a small cache, expire, and come back; whole saves, deltas and a loaded store."""
    def made_stores():
        stores = [RowStore(100, 'float64', FIRST, capacity=4000, expire_after=6, **storage)
                  for storage in ({}, {'directory': str(tmp_path), 'resident_bytes': 1})]
        for store in stores:
            store.set_state_widths([100])
        return stores

    stores, random, marks = made_stores(), np.random.RandomState(0), [None, None]
    for step in range(24):
        keys = unique(np.minimum(random.zipf(1.1, 3000), 1 << 40))
        for store in stores:
            store.update('adagrad', {'lr': 0.1, 'rescale': 1.0, 'epsilon': 0.1}, keys, np.ones((len(keys), 100)) * step)
        if step % 8 == 5:
            marks = [store.save(str(tmp_path / name / str(step)), mark)['mark']
                     for store, name, mark in zip(stores, ('memory', 'files'), marks)]
            assert_same_arrays(tmp_path / 'memory' / str(step), tmp_path / 'files' / str(step))
    assert stores[0].statistics()['expired'] == stores[1].statistics()['expired'] > 1000
    for store, name in zip(made_stores(), ('memory', 'files')):
        for step in (5, 13, 21):
            store.load(str(tmp_path / name / str(step)))
        assert len(store) > 3000
        store.save(str(tmp_path / name / 'loaded'))
    assert_same_arrays(tmp_path / 'memory' / 'loaded', tmp_path / 'files' / 'loaded')


#: Uses a store that is larger than its cache.
USE = """
import sys
import numpy as np
from mxhybrid.row_store.row_store import RowStore
store = RowStore(64, directory=sys.argv[1], resident_bytes=int(sys.argv[2]))
for step in range(3):
    store.assign(np.arange(10000), np.arange(step, 10000 + step)[:, None] * np.ones(64))
assert (store.read(np.arange(10000)) == np.arange(2, 10002)[:, None]).all()
"""
#: Refuses asynchronous I/O, as a container may do it.
REFUSE = """
import ctypes, struct
# A filter of system calls: load the number; the answer to io_setup, number 206, is ENOSYS; others are allowed.
program = b''.join(struct.pack('HBBI', *step) for step in (
    (0x20, 0, 0, 0), (0x15, 0, 1, 206), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)))
code = ctypes.create_string_buffer(program, len(program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
filter = struct.pack('HxxxxxxP', 4, ctypes.addressof(code))
assert libc.prctl(22, 2, ctypes.create_string_buffer(filter, len(filter))) == 0, ctypes.get_errno()
assert libc.syscall(206, 1, 0) == -1 and ctypes.get_errno() == 38
"""


@pytest.mark.both_pythons
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='numbers of system calls')
def test_rows_are_read_singly_without_asynchronous_reads(tmp_path):
    run_program(REFUSE + USE, tmp_path, 1)


@pytest.mark.both_pythons
@pytest.mark.parametrize('flags, message', [(os.O_WRONLY, 'read'), (os.O_RDONLY, 'written')])
def test_failed_reads_and_writes_are_errors(tmp_path, flags, message):
    store = RowStore(64, directory=str(tmp_path), resident_bytes=1)
    store.assign(np.arange(10000), np.ones((10000, 64)))
    (descriptor,) = [path for name, path in nameless_files(tmp_path).items() if name.startswith('mxhybrid-rows-')]
    damaged = os.open(str(descriptor), flags | os.O_DIRECT)  # instead of a damaged disk
    os.dup2(damaged, int(descriptor.name))
    os.close(damaged)
    for _ in range(2):
        with pytest.raises(JobError, match="the file 'rows' in .* cannot be %s .*: Bad file descriptor; check its disk"
                                           % message):
            for _ in range(4):
                store.assign(np.arange(10000), np.ones((10000, 64)))
    with pytest.raises(JobError, match='cannot be ' + message):
        store.read(np.arange(10000))
    store.close()


def test_state_of_another_size_is_made_in_one_pass(tmp_path):
    """Rows much narrower than a block of the disk: the pass reads each byte of the file once."""
    store = RowStore(8, directory=str(tmp_path), resident_bytes=1)
    keys = np.random.RandomState(0).permutation(100000)
    for part in np.array_split(keys, 20):
        store.assign(part, part[:, None] * np.ones(8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    store.set_state_widths([8])
    read_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before) * 512
    assert read_bytes <= 2 * store.statistics()['file_bytes']
    assert (store.read(keys) == keys[:, None]).all() and not store.read_state(0, keys).any()


@pytest.mark.both_pythons
def test_stores_share_a_directory(tmp_path):
    stores = [RowStore(2, directory=str(tmp_path)) for _ in range(2)]
    for number, store in enumerate(stores):
        store.assign(np.arange(1000), np.full((1000, 2), number))
    assert len(nameless_files(tmp_path)) == 4 and not list(tmp_path.iterdir())
    for number, store in enumerate(stores):
        assert (store.read(np.arange(1000)) == number).all()
        store.close()
    assert not nameless_files(tmp_path)


@pytest.mark.both_pythons
@pytest.mark.parametrize('resident_bytes', [0, 1])
def test_a_store_that_cannot_be_cleared_keeps_its_rows(tmp_path, resident_bytes):
    directory = tmp_path / 'rows'
    directory.mkdir()
    store = RowStore(2, directory=str(directory), resident_bytes=resident_bytes)
    store.assign(np.arange(1000), np.ones((1000, 2)))
    directory.rmdir()  # the files have no names in it
    with pytest.raises(JobError, match='No such file'):
        store.clear()
    store.assign(np.arange(900, 2000), np.full((1100, 2), 2))
    np.testing.assert_array_equal(store.read(np.arange(2000))[:, 0], np.repeat([1, 2], [900, 1100]))
    assert len(store) == store.statistics()['slots'] == 2000


@pytest.mark.parametrize('directory, message', [
    ('missing', 'No such file or directory: give a directory that exists'), ('file', 'Not a directory'),
    ('file/rows', 'Not a directory'), ('/proc/1', 'No such file')])
def test_bad_directories_are_refused(tmp_path, directory, message):
    (tmp_path / 'file').write_text('')
    with pytest.raises(JobError, match='storage: .*%s' % message):
        RowStore(2, directory=str(tmp_path / directory))


#: Fills a store in the directory, prints the error if there is one and whether the rows before it are right.
FILL = """
import resource, sys
import numpy as np
from mxhybrid.base.errors import JobError
from mxhybrid.row_store.row_store import RowStore
store = RowStore(64, directory=sys.argv[1], resident_bytes=int(sys.argv[3]))
if sys.argv[2] == 'limit':
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
try:
    for first in range(0, 1 << 16, 1024):
        store.assign(np.arange(first, first + 1024), np.full((1024, 64), first))
except JobError as error:
    print(error)
    print((store.read(np.arange(first)) == np.arange(first)[:, None] // 1024 * 1024).all())
print('filled', flush=True)
sys.stdin.read()
"""


@pytest.mark.both_pythons
@pytest.mark.parametrize('resident_bytes', [0, 1])
def test_full_disk_is_an_error(tmp_path, resident_bytes):
    """The limit of the size of files stands in for the disk: the system refuses blocks in the same way."""
    output = run_program(FILL, tmp_path, 'limit', resident_bytes, stdin=subprocess.DEVNULL).stdout.splitlines()
    assert "storage: the file 'rows' in %s cannot grow from" % tmp_path in output[0]
    assert 'bytes: File too large; free space on its disk' in output[0]
    assert output[1:] == ['True', 'filled']
    assert not list(tmp_path.iterdir())


#: Prints how many calls of the system were interrupted.
COUNT = """
import ctypes, os
assert not os.listdir(sys.argv[1])
print(ctypes.CDLL(None).number_of_interrupted_calls())
"""


@pytest.mark.both_pythons
@pytest.mark.parametrize('resident_bytes, least_calls', [(0, 6), (1, 100)])
def test_interrupted_calls_are_made_again(tmp_path, resident_bytes, least_calls):
    library, directory = tmp_path / 'interrupted.so', tmp_path / 'rows'
    directory.mkdir()
    subprocess.run(['gcc', '-shared', '-fPIC', str(HERE / 'interrupted_calls.c'), '-o', str(library), '-ldl'],
                   check=True, timeout=60)
    env = {**os.environ, 'LD_PRELOAD': str(library)}
    assert int(run_program(USE + COUNT, directory, resident_bytes, env=env).stdout) >= least_calls


@pytest.mark.both_pythons
def test_a_killed_process_leaves_nothing(tmp_path):
    with subprocess.Popen([sys.executable, '-c', FILL, str(tmp_path), '', '1'], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == 'filled\n'
            assert not list(tmp_path.iterdir())
        finally:
            process.kill()
    assert not list(tmp_path.iterdir())
