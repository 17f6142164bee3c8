"""Rows of a dynamic table in one process."""
import collections
import tempfile

import mxnet as mx
import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mxhybrid.base.errors import CheckpointError, InputError, JobError
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.native.optimizer_state import state_widths
from mxhybrid.row_store.row_store import FirstValues, RowStore, as_keys, newest_parts, partition_of
from mxhybrid.servers.kernel_rules import kernel_rule

from ...helpers.row_stores import FIRST, SGD, SPECIAL, first_rows, unique
from ...helpers.table_model import Model
from ...helpers.tables import mxnets_partition

#: Rules with settings, by optimizer of MXNet.
OPTIMIZERS = [('sgd', {}), ('sgd', {'momentum': 0.9}), ('adam', {'beta1': 0.8}), ('adagrad', {'eps': 1e-4}),
              ('groupadagrad', {}), ('ftrl', {'lamda1': 0.1, 'beta': 0.7})]


def splitmix64(key):
    """Return the first output of splitmix64 with a key as its state."""
    mask = (1 << 64) - 1
    mixed = (key + 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & mask
    return mixed ^ mixed >> 31


class Machine(RuleBasedStateMachine):
    """A store that is compared with a dictionary; plain SGD with rate 1 subtracts gradients."""

    keys = st.lists(st.integers(0, 40) | st.sampled_from(SPECIAL.tolist()) | st.integers(-1 << 63, (1 << 63) - 1),
                    max_size=30)

    @initialize(width=st.sampled_from([1, 3, 16, 300]), dtype=st.sampled_from(['float32', 'float64']),
                storage=st.sampled_from(['memory', 'files', 'budget']))
    def begin(self, width, dtype, storage):
        self.folder = tempfile.TemporaryDirectory()
        self.store = RowStore(width, dtype, FIRST, directory='' if storage == 'memory' else self.folder.name,
                              resident_bytes=1 if storage == 'budget' else 0)
        self.store.set_state_widths([width])
        self.empty_store = RowStore(width, dtype, FIRST)
        self.rows, self.states = {}, {}

    def teardown(self):
        if hasattr(self, 'store'):
            self.store.close()
            self.folder.cleanup()

    def first(self, key):
        return self.empty_store.read([key])[0]

    def drawn(self, count, seed):
        return np.random.RandomState(seed).standard_normal((count, self.store.width)).astype(self.store.dtype)

    @rule(keys=keys, seed=st.integers(0, 1000))
    def update(self, keys, seed):
        keys = unique(keys)
        gradients = self.drawn(len(keys), seed)
        assert self.store.update('sgd', {'lr': 1.0, 'rescale': 1.0}, keys, gradients) == len(keys)
        for key, gradient in zip(keys.tolist(), gradients):
            self.rows[key] = self.rows.get(key, self.first(key)) - gradient

    @rule(first=st.integers(-1 << 40, 1 << 40), count=st.integers(1, 3000), stride=st.integers(1, 1 << 20))
    def grow(self, first, count, stride):
        self.assign_rows(first + stride * np.arange(count), count)

    @rule(keys=keys, seed=st.integers(0, 1000))
    def assign(self, keys, seed):
        self.assign_rows(unique(keys), seed)

    def assign_rows(self, keys, seed):
        rows = self.drawn(len(keys), seed)
        self.store.assign(keys, rows)
        self.rows.update(zip(keys.tolist(), rows))

    @rule(keys=keys, seed=st.integers(0, 1000))
    def assign_state(self, keys, seed):
        keys = unique(keys)
        states = self.drawn(len(keys), seed)
        self.store.assign_state(0, keys, states)
        for key, state in zip(keys.tolist(), states):
            self.rows.setdefault(key, self.first(key))
            self.states[key] = state

    @rule(keys=keys, everywhere=st.integers(0, 9))
    def erase(self, keys, everywhere):
        # Some of those that exist, too, and now and then nearly all.
        keys = set(keys) | {key for number, key in enumerate(sorted(self.rows)) if number % 10 < everywhere}
        assert self.store.erase(sorted(keys)) == len(keys & set(self.rows))
        for key in keys:
            self.rows.pop(key, None)
            self.states.pop(key, None)

    @rule()
    def clear(self):
        self.store.clear()
        self.rows, self.states = {}, {}

    @invariant()
    def rows_and_states_are_those_of_the_dictionary(self):
        if not hasattr(self, 'store'):
            return
        assert len(self.store) == len(self.rows)
        keys = list(self.rows)[-500:] + [5, -7, 1 << 55]
        np.testing.assert_array_equal(self.store.read(keys),
                                      [self.rows.get(key, self.first(key)) for key in keys])
        zeros = np.zeros(self.store.width)
        np.testing.assert_array_equal(self.store.read_state(0, keys), [self.states.get(key, zeros) for key in keys])


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-5), ('float64', 1e-10)])
@pytest.mark.parametrize('more', [{}, {'clip_gradient': 0.05}, {'wd': 0.1, 'rescale_grad': 0.25}])
@pytest.mark.parametrize('name, settings', OPTIMIZERS)
def test_updates_equal_mxnets(name, settings, more, dtype, tolerance):
    if name in ('adagrad', 'groupadagrad') and 'wd' in more:
        more = {'rescale_grad': 0.25}
    if name in ('adagrad', 'groupadagrad', 'ftrl') and dtype == 'float64':
        tolerance = 1e-5  # MXNet keeps their state in float32, so a table of float32 is the reference
    width, keys = 5, np.concatenate([SPECIAL[::2], np.arange(100, 120)])
    keys.sort()
    optimizer = mx.optimizer.create(name, learning_rate=0.1, **settings, **more)
    rule_name, rule_settings = kernel_rule(optimizer, has_state='momentum' in settings)
    store = RowStore(width, dtype, FIRST)
    store.set_state_widths(state_widths(optimizer, 0, (1, width), dtype))
    reference_dtype = dtype if tolerance == 1e-10 else 'float32'
    reference, theirs = mxnets_partition(first_rows(FIRST, keys, width, reference_dtype), optimizer)
    random, touched = np.random.RandomState(0), np.zeros(len(keys), bool)
    for _ in range(6):
        places = np.flatnonzero(random.rand(len(keys)) < 0.3)
        gradients = random.standard_normal((len(places), width)).astype(reference_dtype)
        touched[places] = True
        assert store.update(rule_name, rule_settings, keys[places], gradients) == len(places)
        reference.update(theirs, make_row_sparse(places, gradients, (len(keys), width)))
        np.testing.assert_allclose(store.read(keys), reference.view, rtol=tolerance, atol=tolerance)
    assert len(store) == touched.sum()


def reference_update(name, settings, row, state, gradient):
    """Update a row and its state in float64 by the formulas of MXNet's optimizers with a learning rate of 0.1."""
    rate = float(np.float32(0.1))
    if name == 'adagrad':
        state[0] += gradient ** 2
        row -= rate * gradient / np.sqrt(state[0] + float(np.float32(settings['eps'])))
    elif name == 'groupadagrad':
        state[0] += (gradient ** 2).mean()
        row -= rate * gradient / np.sqrt(state[0] + float(np.float32(1e-5)))
    else:
        lamda1, beta = float(np.float32(settings['lamda1'])), float(np.float32(settings['beta']))
        state[0] += gradient - (np.sqrt(state[1] + gradient ** 2) - np.sqrt(state[1])) * row / rate
        state[1] += gradient ** 2
        row[:] = np.where(abs(state[0]) > lamda1, (np.sign(state[0]) * lamda1 - state[0])
                          / ((beta + np.sqrt(state[1])) / rate), 0)


@pytest.mark.parametrize('name, settings', [case for case in OPTIMIZERS if case[0].endswith(('grad', 'ftrl'))])
def test_updates_in_float64_equal_the_formulas(name, settings):
    """MXNet keeps the state of these optimizers in float32, so it is no reference here."""
    width, keys = 5, SPECIAL[::3]
    optimizer = mx.optimizer.create(name, learning_rate=0.1, **settings)
    rule_name, rule_settings = kernel_rule(optimizer, has_state=True)
    store = RowStore(width, 'float64', FIRST)
    store.set_state_widths(state_widths(optimizer, 0, (1, width), 'float64'))
    rows, states = first_rows(FIRST, keys, width, 'float64'), np.zeros((len(keys), 2, width))
    random = np.random.RandomState(0)
    for _ in range(6):
        places = np.flatnonzero(random.rand(len(keys)) < 0.5)
        gradients = random.standard_normal((len(places), width))
        store.update(rule_name, rule_settings, keys[places], gradients)
        for place, gradient in zip(places, gradients):
            reference_update(name, settings, rows[place], states[place], gradient)
        np.testing.assert_allclose(store.read(keys), rows, rtol=1e-10, atol=1e-10)


def test_state_of_groupadagrad_is_one_element_a_row():
    assert [state_widths(mx.optimizer.create(name), 0, (1, 16), 'float32') for name in ('groupadagrad', 'adam', 'sgd')
            ] == [[1], [16, 16], []]


def test_other_rules(tmp_path):
    store = RowStore(2, 'float64')
    store.set_state_widths([2, 1])
    store.update('assign', {}, [3, 5], [[1, 2], [3, 4]])
    store.update('ignore', {}, [5, 7], [[9, 9], [9, 9]])
    store.update('assign state', {}, [5], [[5, 6]])
    store.update('assign state', {}, [5], [[7, 8]], slot=1)
    assert store.read([3, 5, 7]).tolist() == [[1, 2], [3, 4], [0, 0]]
    assert store.read_state(0, [5]).tolist() == [[5, 6]] and store.read_state(1, [5]).tolist() == [[7]]
    store.update('replace', {}, [8], [[1, 1]])
    assert len(store) == 1 and store.read([3, 8]).tolist() == [[0, 0], [1, 1]]
    assert store.save(str(tmp_path / 'rows'))['clock'] == store.statistics()['updates'] == 0


def test_rows_stay_when_the_sizes_of_state_change():
    store = RowStore(3, 'float32', FIRST)
    keys = np.arange(1000)
    store.update('sgd', SGD, keys, np.ones((1000, 3)))
    rows = store.read(keys)
    for widths in ([3], [3, 3], [1], []):
        store.set_state_widths(widths)
        np.testing.assert_array_equal(store.read(keys), rows)
        if widths:
            assert not store.read_state(len(widths) - 1, keys).any()


def test_count_of_updates_sets_the_rate_of_adam():
    stores = [RowStore(1, 'float64') for _ in range(2)]
    adam = {'lr': 0.1, 'rescale': 1.0, 'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-8}
    for store in stores:
        store.set_state_widths([1, 1])
    stores[1].set_updates(10)
    for store in stores:
        store.update('adam', adam, [1], [[1.0]])
    assert stores[0].read([1])[0, 0] != stores[1].read([1])[0, 0]
    assert [store.statistics()['updates'] for store in stores] == [1, 11]


@pytest.mark.parametrize('count', [1, 2, 7, 64])
def test_partitions_are_hashes(count):
    partitions = partition_of(SPECIAL, count)
    assert partitions.tolist() == [splitmix64(int(key)) % count for key in SPECIAL]
    shares = collections.Counter(partition_of(np.arange(0, 1 << 20, 64), count).tolist())
    assert len(shares) == count and max(shares.values()) < 1.6 * min(shares.values())


def test_memory_is_that_of_rows_and_16_bytes():
    for width, states in ((4, 0), (16, 1), (64, 2)):  # narrower rows need up to 2 bytes more
        store = RowStore(width)
        store.set_state_widths([width] * states)
        row_bytes, rows = width * 4 * (1 + states), 0
        while rows < 300000:
            store.assign(np.arange(rows, rows + 10000) * 7, np.zeros((10000, width)))
            rows += 10000
            assert store.statistics()['memory_bytes'] <= rows * (1.25 * row_bytes + 16) + 4096
        store.close()


def test_admission_counts_updates_that_have_the_key():
    store = RowStore(3, 'float64', FIRST, admit=3)
    default = first_rows(FIRST, [-1 << 63], 3, 'float64')[0]
    keys = [2, 5, 1 << 60]
    for step in range(4):
        sighted = [2, 5] if step == 1 else keys
        store.update('sgd', SGD, sighted, np.ones((len(sighted), 3)))
        # At its third sighting a key gets a row, from its own first values.
        expected = [first_rows(FIRST, [key], 3, 'float64')[0] - 0.5 * max(0, count - 2) if count >= 3 else default
                    for key, count in zip(keys, [step + 1, step + 1, step + (step == 0)])]
        np.testing.assert_allclose(store.read(keys), expected, rtol=1e-14)
        statistics = store.statistics()
        assert len(store) == statistics['admitted'] == [0, 0, 2, 3][step]
        assert statistics['waiting'] == 3 - len(store)
    np.testing.assert_array_equal(store.read([77]), [default])
    store.assign([77], np.zeros((1, 3)))  # needs no admission
    assert len(store) == 4


def pushed_keys(step):
    """Return the keys that a step of a table with admission pushes."""
    return unique(np.random.RandomState(step).randint(-300, 300, 60) * (1 << 40))


def admitting_stores(partitions):
    """Return the stores of partitions of a table whose keys are admitted at their third sighting."""
    return [RowStore(1, 'float64', FirstValues(), admit=3) for _ in range(partitions)]


def push_keys(stores, steps):
    for step in steps:
        keys = pushed_keys(step)
        partitions = partition_of(keys, len(stores))
        for number, store in enumerate(stores):
            own = keys[partitions == number]
            store.update('sgd', SGD, own, np.ones((len(own), 1)))


def has_row(stores, keys):
    """Return which keys have a row, which updates have made negative."""
    partitions = partition_of(keys, len(stores))
    values = np.stack([store.read(keys)[:, 0] for store in stores])
    return values[partitions, np.arange(len(keys))] < 0


@pytest.mark.parametrize('before, after', [(1, 1), (3, 3), (3, 2), (1, 4), (4, 1)])
def test_sightings_are_saved_and_loaded(tmp_path, before, after):
    """A training that is resumed admits the keys of one that is not."""
    keys = unique(np.concatenate([pushed_keys(step) for step in range(14)]))
    expected, saved_stores, resumed = (admitting_stores(count) for count in (before, before, after))
    push_keys(expected, range(7))
    push_keys(saved_stores, range(7))
    folders = [str(tmp_path / str(number)) for number in range(before)]
    for store, folder in zip(saved_stores, folders):
        store.save(folder)
    for number, store in enumerate(resumed):
        push_keys([store], range(50, 53))  # rows and sightings that a load forgets
        store.clear()
        for folder in folders:
            store.load(folder, number, after)
        for folder in newest_parts(folders):
            store.load_waiting(folder, number, after)
    waiting = sum(store.statistics()['waiting'] for store in resumed)
    assert waiting == sum(store.statistics()['waiting'] for store in saved_stores) > 20
    for step in range(7, 14):
        assert (has_row(resumed, keys) == has_row(expected, keys)).all()
        push_keys(expected, [step])
        push_keys(resumed, [step])
    admitted = has_row(resumed, keys)
    assert (admitted == has_row(expected, keys)).all() and 0 < admitted.sum() < len(keys)


def test_keys_wait_only_in_tables_that_admit_them(tmp_path):
    store = RowStore(1)
    store.save(str(tmp_path / 'plain'))
    assert not (tmp_path / 'plain' / 'waiting.npy').exists()
    admitting = admitting_stores(1)[0]
    admitting.load_waiting(str(tmp_path / 'plain'))
    push_keys([admitting], range(2))
    admitting.save(str(tmp_path / 'admitting'))
    store.load_waiting(str(tmp_path / 'admitting'))
    assert store.statistics()['waiting'] == 0 < admitting.statistics()['waiting']
    (tmp_path / 'admitting' / 'sightings.npy').unlink()
    with pytest.raises(CheckpointError, match='sightings.npy'):
        admitting.load_waiting(str(tmp_path / 'admitting'))


def test_no_key_is_admitted_early_among_millions():
    store = RowStore(1, admit=2)
    random = np.random.RandomState(0)
    for _ in range(10):
        keys = unique(random.randint(-1 << 62, 1 << 62, 300000))
        store.update('sgd', SGD, keys, np.ones((len(keys), 1)))
    statistics = store.statistics()
    assert len(store) == 0 and statistics['waiting'] > 2999000
    assert statistics['memory_bytes'] < 18 * statistics['waiting']
    store.update('sgd', SGD, keys, np.ones((len(keys), 1)))
    assert len(store) == len(keys) == statistics['waiting'] - store.statistics()['waiting']


def expire(store):
    for _ in range(16):
        store.update('sgd', SGD, [2], np.ones((1, 1)))


def exceed_capacity(store):
    store.assign(np.arange(100, 150), np.zeros((50, 1)))
    store.update('sgd', SGD, [100], np.ones((1, 1)))


@pytest.mark.parametrize('remove', [expire, exceed_capacity, lambda store: store.erase([1])])
def test_a_key_whose_row_was_removed_waits_again(remove):
    store = RowStore(1, admit=3, expire_after=16, capacity=40)

    def sighted():
        store.update('sgd', SGD, [1], np.ones((1, 1)))
        return store.read([1])[0, 0] < 0

    assert [sighted() for _ in range(3)] == [False, False, True]
    remove(store)
    assert [sighted() for _ in range(3)] == [False, False, True]
    store.erase([1])
    sighted()
    store.assign([1], np.zeros((1, 1)))  # needs no admission
    store.erase([1])
    assert [sighted() for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize('seed', range(12))
def test_removal_of_rows(seed, tmp_path):
    """Rows are removed as the model says, also after a save and a load in the middle."""
    random = np.random.RandomState(seed)
    options = {'capacity': [0, 40, 200][seed % 3], 'expire_after': [5, 0, 33, 0][seed % 4],
               'evict': ['lru', 'rarest'][seed % 2]}
    model, store = Model(**options), RowStore(2, 'float32', FIRST, **options)
    for step in range(120):
        keys = unique(np.minimum(random.zipf(1.2, 30), 1 << 40) * random.choice([-1, 1], 30))[:40]
        store.update('sgd', SGD, keys, np.ones((len(keys), 2)))
        model.step(keys.tolist(), 1.0)
        known = np.array(sorted(model.rows), np.int64)
        assert len(store) == len(known)
        is_first = (store.read(known) == first_rows(FIRST, known, 2)).all(1)
        assert not is_first.any()
        assert store.statistics()['expired'] == model.expired
        if step == 60:
            store.save(str(tmp_path / 'rows'))
            store, model.expired = RowStore(2, 'float32', FIRST, **options), 0
            store.set_clock(61)
            store.load(str(tmp_path / 'rows'))


def test_capacity_below_a_batch_is_refused():
    store = RowStore(1, capacity=3)
    with pytest.raises(JobError, match='capacity: 3 rows, but a step has 4 distinct keys'):
        store.update('sgd', SGD, range(4), np.zeros((4, 1)))
    assert len(store) == 0


@pytest.mark.both_pythons
@pytest.mark.parametrize('keys, message', [
    ([1.0], 'float'), ([float('nan')], 'float'), (['a'], 'keys of type'),
    (np.array([1 << 63], np.uint64), '9223372036854775808 is not below')])
def test_bad_keys_are_refused(keys, message):
    with pytest.raises(InputError, match=message):
        as_keys(keys)


@pytest.mark.both_pythons
@pytest.mark.parametrize('arguments, message', [
    ({'width': 0}, 'width: 0 columns'), ({'dtype': 'float16'}, 'float16'),
    ({'evict': 'first'}, "evict='first'"), ({'admit': 0}, 'admit=0'),
    ({'admit': 1 << 15}, 'admit=32768: give an integer from 1 to 32767'),
    ({'capacity': -1}, 'capacity=-1'),
    ({'resident_bytes': -1}, 'from 0 to 4611686018427387904')])
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        RowStore(**dict({'width': 4}, **arguments))


@pytest.mark.both_pythons
def test_bad_calls_are_refused():
    store = RowStore(2)
    with pytest.raises(InputError, match=r'rows of shape \(1, 2\) for 2 keys'):
        store.update('sgd', SGD, [1, 2], np.zeros((1, 2)))
    for keys in ([2, 1], [1, 1]):
        with pytest.raises(JobError, match='not sorted or not unique'):
            store.update('sgd', SGD, keys, np.zeros((2, 2)))
    with pytest.raises(JobError, match="'momentum' needs optimizer state of 8 bytes a row, number 0"):
        store.update('momentum', SGD, [1], np.zeros((1, 2)))
    with pytest.raises(JobError, match="'callback' cannot update a dynamic table"):
        store.update('callback', {}, [1], np.zeros((1, 2)))
    with pytest.raises(InputError, match='optimizer state number 0'):
        store.assign_state(0, [1], np.zeros((1, 2)))
    assert len(store) == 0
    for _ in range(2):
        store.close()
    with pytest.raises(InputError, match='freed by close'):
        store.read([1])
