"""The cost model of tables: Parallax's table, bounds, and the choices that follow from it."""
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from mxhybrid.routes.costs import (
    MARGIN,
    NEAR_DENSE_MARGIN,
    Estimate,
    Network,
    Speed,
    Use,
    estimate,
    gather_bytes,
    rate,
    ring_bytes,
    server_bytes,
    shares_of_hosts,
    weigh,
)

fast = hypothesis_settings(max_examples=100, deadline=None)
amounts = st.floats(0, 1e9)


@pytest.mark.parametrize('hosts', [2, 3, 8])
def test_bytes_of_parallax(hosts):
    """Table 3 of the paper, one worker per host; w = 1 and α = 0.1, pushed and pulled."""
    w, alpha, n = 1.0, 0.1, hosts
    clients = [2 * alpha * w] * n
    at = list(range(n))
    assert server_bytes(clients, at, [1.0] + [0.0] * (n - 1)) == pytest.approx(2 * alpha * w * (n - 1))
    assert server_bytes(clients, at, [1.0 / n] * n) == pytest.approx(4 * alpha * w * (n - 1) / n)
    assert ring_bytes(w, n, n) == pytest.approx(4 * w * (n - 1) / n)
    assert gather_bytes(w, n, n) == pytest.approx(2 * w * (n - 1) / n)


def test_servers_of_a_host_have_consecutive_numbers():
    assert shares_of_hosts({0: 30, 1: 10}, 2, 4) == [1.0, 0.0]
    assert shares_of_hosts({0: 10, 1: 10, 2: 10, 3: 10}, 2, 4) == [0.5, 0.5]
    assert shares_of_hosts({0: 1, 1: 1, 2: 1, 5: 1}, 3, 6) == [0.5, 0.25, 0.25]
    assert shares_of_hosts({0: 7}, 3, 1) == [1.0, 0.0, 0.0]


def test_a_ring_crosses_each_host_once():
    assert ring_bytes(1.0, 12, 2) == pytest.approx(4 * 11 / 12)
    apart = server_bytes([2.0] * 12, [0] * 6 + [1] * 6, [0.5, 0.5])
    merged = server_bytes([2.0] * 2, [0, 1], [0.5, 0.5])
    assert apart == pytest.approx(6 * merged)


def test_on_one_host_all_that_is_sent_counts():
    assert server_bytes([3.0, 4.0], [0, 0], [1.0]) == 7.0
    assert ring_bytes(5.0, 3, 1) == 20.0
    assert gather_bytes(5.0, 3, 1) == 10.0


@fast
@given(st.lists(st.tuples(amounts, st.integers(0, 3)), min_size=1, max_size=8), st.permutations(range(4)),
       st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
def test_names_of_hosts_do_not_change_counts(clients, order, weights):
    shares = [weight / sum(weights) for weight in weights]
    moved, hosts = [client_bytes for client_bytes, _ in clients], [host for _, host in clients]
    byte_count = server_bytes(moved, hosts, shares)
    renamed = [0.0] * 4
    for host, share in enumerate(shares):
        renamed[order[host]] = share
    assert server_bytes(moved, [order[host] for host in hosts], renamed) == pytest.approx(byte_count)
    assert 0 <= byte_count <= sum(moved) * (1 + 1e-9)
    assert server_bytes([2 * client_bytes for client_bytes in moved], hosts, shares) == pytest.approx(2 * byte_count)


def use(alpha, workers=4, rows=10000, width=64, requests=1, gathered=0.0):
    """A table on `workers` hosts of one worker each."""
    return Use(rows, width, 4, 4 * width, [alpha * rows] * workers, [alpha * rows] * workers, list(range(workers)),
               [1 / workers] * workers, requests, gathered, workers)


@fast
@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 16))
def test_servers_cost_by_touched_rows_allreduce_does_not(alpha, other_alpha, workers):
    network = Network(Speed(0.001, 1e8), Speed(0.002, 1e8))
    low, high = (estimate(use(each, workers), network) for each in sorted((alpha, other_alpha)))
    assert low.servers_bytes <= high.servers_bytes and low.servers_s <= high.servers_s
    assert low.allreduce_bytes == high.allreduce_bytes and low.allreduce_s == high.allreduce_s


def test_seconds_are_latency_requests_and_bytes():
    network = Network(Speed(0.001, 1e6, 0.01), Speed(0.5, 1e6))
    costs = estimate(use(0.1, requests=3), network)
    assert costs.servers_bytes == pytest.approx(4 * 0.1 * 10000 * (64 * 4 + 12) * 3 / 4)
    assert costs.servers_s == pytest.approx(0.001 + 2 * 0.01 + costs.servers_bytes / 1e6)
    assert costs.allreduce_bytes == pytest.approx(4 * 10000 * 65 * 4 * 3 / 4)
    assert costs.allreduce_s == pytest.approx(0.5 + costs.allreduce_bytes / 1e6)
    gathering = estimate(use(0.1, requests=3, gathered=4000.0), network)
    assert gathering.servers_bytes == pytest.approx(costs.servers_bytes + gather_bytes(16000, 4, 4))
    assert gathering.servers_s == pytest.approx(costs.servers_s + 0.5 + gather_bytes(16000, 4, 4) / 1e6)


@fast
@given(st.floats(1, 1e9), st.floats(1e-6, 100), st.floats(0, 100))
def test_a_rate_is_positive_and_bounded_by_measurements(moved, seconds, latency):
    found = rate(moved, seconds, latency)
    assert moved / seconds * 0.999 <= found <= 2.001 * moved / seconds


def test_near_dense_tables_go_by_allreduce():
    network = Network(Speed(0.001, 5e7), Speed(0.001, 5e7))
    ways = {}
    for alpha in (0.01, 0.5, 1.0):
        ways[alpha] = weigh(estimate(use(alpha), network), alpha, alpha, True).route
    assert ways == {0.01: 'servers', 0.5: 'servers', 1.0: 'allreduce'}


@pytest.mark.parametrize('union, ratio, route', [
    (0.5, MARGIN - 0.01, 'allreduce'), (0.5, MARGIN + 0.01, 'servers'), (0.95, MARGIN + 0.01, 'allreduce'),
    (0.95, NEAR_DENSE_MARGIN + 0.01, 'servers'), (0.0, 0.0, 'allreduce')])
def test_allreduce_must_be_cheaper_or_tables_near_dense(union, ratio, route):
    predicted = Estimate(1.0, 1.0, 1.0, ratio)
    choice = weigh(predicted, 0.1, union, True)
    assert (choice.route, choice.because, choice.touched, choice.union) == (route, 'measured', 0.1, union)
    refused = weigh(predicted, 0.1, union, False)
    assert (refused.route, refused.because) == ('servers', 'memory' if route == 'allreduce' else 'measured')
