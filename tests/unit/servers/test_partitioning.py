"""The arithmetic of partitions and their placement, mostly as properties."""
import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from mxhybrid.servers.partitioning import (
    MAX_KEY,
    MAX_KEY_BYTES,
    Partitioning,
    Placement,
    chunks,
    id_dtype,
    partition_count,
    rows_in_partition,
    shared_rows,
)

from ...helpers.tables import local, split

TWO_GIB = 2 ** 31


def partitioning(rows, count, width=1):
    """A table cut into `count` partitions, with made-up keys."""
    return Partitioning(rows, width, tuple(range(count)), (0,) * count)


def tables(max_rows=200):
    """Tables with at most one partition a row."""
    return st.integers(1, max_rows).flatmap(
        lambda rows: st.integers(1, rows).map(lambda count: partitioning(rows, count)))


@st.composite
def tables_and_ids(draw):
    """A table and sorted, unique row ids of it."""
    table = draw(tables())
    ids = draw(st.sets(st.integers(0, table.rows - 1)))
    return table, np.array(sorted(ids), np.int64)


# ------------------------------------------------------------------------------------------ cutting


@given(tables())
def test_partitions_share_all_rows_evenly_without_gaps(table):
    members = [table.members(part) for part in range(table.count)]
    np.testing.assert_array_equal(np.sort(np.concatenate(members)), np.arange(table.rows))
    sizes = [table.shape(part)[0] for part in range(table.count)]
    assert sizes == [len(rows) for rows in members]
    assert max(sizes) - min(sizes) <= 1 <= min(sizes)
    for rows, size in zip(members, sizes):
        np.testing.assert_array_equal(local(table, rows), np.arange(size))


@given(tables_and_ids())
def test_split_then_local_then_members_gives_the_ids_back(table_and_ids):
    table, ids = table_and_ids
    positions = split(table, ids)
    assert len(positions) == table.count
    np.testing.assert_array_equal(np.sort(np.concatenate(positions)), np.arange(len(ids)))
    for part, at in enumerate(positions):
        rows = local(table, ids[at])
        assert np.all(rows[1:] > rows[:-1])  # ps-lite wants a push sorted and unique
        np.testing.assert_array_equal(table.members(part)[rows], ids[at])


def test_row_ids_beyond_32_bits_survive():
    table = partitioning(2 ** 33, 4)
    ids = np.array([2 ** 32 + 1, 2 ** 32 + 5, 2 ** 33 - 1])
    assert [list(at) for at in split(table, ids)] == [[], [0, 1], [], [2]]
    assert list(local(table, ids)) == [2 ** 30, 2 ** 30 + 1, 2 ** 31 - 1]


@given(st.integers(1, 10 ** 12), st.integers(1, 1000))
def test_rows_in_partition_add_up(rows, count):
    sizes = [rows_in_partition(rows, count, part) for part in range(count)]
    assert sum(sizes) == rows
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(0, 300), st.integers(0, 50), st.integers(1, 400))
def test_chunks_join_to_all_rows_below_the_limit(rows, row_bytes, limit):
    found = list(chunks(rows, row_bytes, limit))
    assert [row for ids in found for row in ids] == list(range(rows))
    assert all(ids.dtype == np.int64 and (0 < len(ids) * row_bytes <= limit or len(ids) == 1) for ids in found
               if row_bytes)


def test_row_ids_travel_in_the_smallest_type():
    assert id_dtype(2 ** 31 - 1) == np.int32 and id_dtype(2 ** 31) == np.int64


# ------------------------------------------------------------------------------------------ how many


@given(st.integers(1, 10 ** 6), st.integers(1, 512), st.sampled_from([2, 4, 8]), st.integers(1, 10 ** 7))
def test_wanted_partitions_are_granted_up_to_one_a_row(rows, width, itemsize, requested):
    if rows * max(width * itemsize, 8) < MAX_KEY_BYTES // 2:
        assert partition_count(rows, width, itemsize, requested) == min(requested, rows)


@given(st.integers(1, 10 ** 11), st.integers(1, 10 ** 6), st.sampled_from([2, 4, 8]), st.integers(1, 64))
def test_no_key_reaches_two_gib(rows, width, itemsize, requested):
    count = partition_count(rows, width, itemsize, requested)
    largest = rows_in_partition(rows, count, 0)
    assert largest * width * itemsize < TWO_GIB
    assert largest * 8 < TWO_GIB
    assert count >= min(requested, rows)


@pytest.mark.parametrize('rows, width, itemsize', [
    (793470, 2048, 4),  # LM1B's vocabulary, wide: 6.5 GB
    (2 ** 29, 1, 4),  # exactly 2 GiB of values
    (2 ** 28, 1, 2),  # 0.5 GiB of values, but exactly 2 GiB of row keys
    (2 ** 33, 1, 2),  # more rows than a C int counts
])
def test_big_tables_are_cut_although_one_partition_was_wanted(rows, width, itemsize):
    count = partition_count(rows, width, itemsize, 1)
    per_row = max(width * itemsize, 8)
    assert count > 1
    assert rows_in_partition(rows, count, 0) * per_row < TWO_GIB
    # ... and no further than needed: one partition fewer would not do.
    assert rows_in_partition(rows, count - 1, 0) * per_row >= TWO_GIB - 2 * per_row


def test_a_table_just_below_the_limit_stays_whole():
    assert partition_count(2 ** 28 - 2, 1, 8, 1) == 1
    assert partition_count(2 ** 28, 1, 8, 1) == 2


@given(st.integers(1, 1000), st.integers(1, 50), st.integers(1, 40), st.integers(100, 5000))
def test_a_smaller_limit_holds_as_well(rows, width, requested, limit):
    count = partition_count(rows, width, 4, requested, max_bytes=limit)
    largest = rows_in_partition(rows, count, 0)
    assert largest == 1 or largest * max(4 * width, 8) <= limit
    assert count <= rows


# ------------------------------------------------------------------------------------------ even load


@pytest.mark.parametrize('count', [2, 8, 16])
def test_touched_rows_are_spread_evenly(count):
    rows = 100000
    batch = np.unique(np.minimum(np.random.RandomState(1).zipf(1.1, 20000), rows) - 1)
    dealt = np.array([len(at) for at in split(partitioning(rows, count), batch)])
    ranges = np.bincount(batch * count // rows, minlength=count)
    assert dealt.max() / dealt.mean() < 1.15
    assert ranges.max() / ranges.mean() > 1.5


@pytest.mark.parametrize('count', [2, 8, 16])
def test_zipf_accesses_pile_up_on_ranges_only(count):
    frequencies = 1.0 / np.arange(1, 10001)
    frequencies /= frequencies.sum()
    dealt = [frequencies[partitioning(10000, count).members(part)].sum() for part in range(count)]
    ranges = [part.sum() for part in np.array_split(frequencies, count)]
    # A row cannot be cut: the best possible load is the average plus the excess of the hottest row.
    assert max(dealt) <= 1.0 / count + frequencies[0]
    assert max(ranges) > 1.5 * max(dealt)


# ------------------------------------------------------------------------------------------ placing


@st.composite
def placements(draw):
    """A number of servers, a first key and tables (rows, width, itemsize, partitions)."""
    num_servers = draw(st.integers(1, 20))
    first_key = draw(st.integers(0, 50))
    table = st.integers(1, 60).flatmap(lambda rows: st.tuples(
        st.just(rows), st.integers(1, 64), st.sampled_from([2, 4, 8]), st.integers(1, rows)))
    return num_servers, first_key, draw(st.lists(table, min_size=1, max_size=8))


@given(placements())
def test_all_workers_place_unique_keys_on_least_loaded_servers(drawn):
    num_servers, first_key, sizes = drawn
    placement, of_another_worker = Placement(num_servers, first_key), Placement(num_servers, first_key)
    taken, others = ([each.key_on(server) for server in range(num_servers)] for each in (placement, of_another_worker))
    assert taken == others
    assert [key * 9973 % num_servers for key in taken] == list(range(num_servers))
    loads, largest = [0] * num_servers, 0
    for rows, width, itemsize, count in sizes:
        table = placement.place(rows, width, itemsize, count)
        assert table == of_another_worker.place(rows, width, itemsize, count)
        assert (table.rows, table.width, table.count) == (rows, width, count)
        assert [key * 9973 % num_servers for key in table.keys] == list(table.servers)
        taken += table.keys
        for part, server in enumerate(table.servers):
            size = table.shape(part)[0] * width * itemsize
            assert loads[server] == min(loads)
            loads[server] += size
            largest = max(largest, size)
    assert len(set(taken)) == len(taken)
    assert first_key <= min(taken) and max(taken) <= MAX_KEY
    assert placement.bytes_on == loads and max(loads) - min(loads) <= largest


def test_a_small_table_avoids_the_big_one():
    placement = Placement(2)
    assert placement.place(1000, 64, 4, 1).servers == (0,)
    assert placement.place(10, 4, 4, 2).servers == (1, 1)


def test_one_server_running_out_leaves_the_others_their_keys():
    placement = Placement(2, MAX_KEY)
    full = (MAX_KEY + 1) * 9973 % 2
    with pytest.raises(OverflowError, match='server %d has no key left' % full):
        placement.key_on(full)
    assert placement.key_on(1 - full) == MAX_KEY


def test_the_largest_hashed_key_fits_an_int():
    assert MAX_KEY * 9973 < TWO_GIB <= (MAX_KEY + 1) * 9973


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.integers(1, 64))
def test_every_server_has_room_for_hundreds_of_partitions(num_servers):
    placement = Placement(num_servers)
    keys = [placement.key_on(server) for server in range(num_servers) for _ in range(300)]
    assert len(set(keys)) == len(keys)


# ------------------------------------------------------------------------------------------ moves


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12))
def test_shared_rows_are_the_common_members(rows, old_count, new_count):
    old, new = partitioning(rows, min(old_count, rows)), partitioning(rows, min(new_count, rows))
    all_rows = []
    for to in range(new.count):
        for old_partition in range(old.count):
            shared = shared_rows(rows, old.count, old_partition, new.count, to)
            common = sorted(set(old.members(old_partition)) & set(new.members(to)))
            if shared is None:
                assert not common
                continue
            assert old.members(old_partition)[shared[0]].tolist() == new.members(to)[shared[1]].tolist() == common != []
            all_rows += common
    assert sorted(all_rows) == list(range(rows))


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(1, 200), st.integers(1, 20)), max_size=4),
       st.integers(1, 400), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_moves_keep_the_servers_loads_even(servers, others, rows, counts):
    placement = Placement(servers)
    for other_rows, count in others:
        placement.place(other_rows, 3, 4, min(count, other_rows))
    before = list(placement.bytes_on)
    table = placement.place(rows, 3, 4, min(counts[0], rows))
    for count in counts[1:]:
        count = min(count, rows)
        size = rows_in_partition(rows, count, 0) * 12
        moved = placement.move(table, 4, count)
        assert (moved.rows, moved.width, moved.count) == (rows, 3, count)
        assert not set(moved.keys) & set(table.keys)
        for key, server in zip(moved.keys, moved.servers):
            assert (key * 9973) % servers == server
        assert sum(placement.bytes_on) == sum(before) + rows * 12
        assert max(placement.bytes_on) - min(placement.bytes_on) <= max(max(before) - min(before), 2 * size)
        table = moved
    placement.release(table, 4)
    assert placement.bytes_on == before
    placement.claim(table, 4)
    assert sum(placement.bytes_on) == sum(before) + rows * 12


@given(st.integers(1, 7), st.integers(1, 8), st.integers(1, 5))
def test_rows_stay_on_servers_when_partitions_are_cut(servers, factor, again):
    placement = Placement(servers)
    count = servers * factor
    rows = 12 * count * again
    old = placement.place(rows, 3, 4, count)
    new = placement.move(old, 4, count * again)
    ids = np.arange(rows)
    assert (np.array(old.servers)[ids % old.count] == np.array(new.servers)[ids % new.count]).all()


def test_keys_left():
    placement = Placement(3, MAX_KEY - 7)
    left = placement.keys_left()
    assert left in (2, 3)
    for server in range(3):
        for _ in range(left):
            placement.key_on(server)
    assert placement.keys_left() == 0
    with pytest.raises(OverflowError):
        for server in range(3):
            placement.key_on(server)
