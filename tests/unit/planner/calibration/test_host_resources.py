"""Cores that hosts have: quotas in folders as the kernel shows them, and hosts that share a machine."""
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.planner.calibration import host_resources
from mxhybrid.planner.calibration.host_resources import core_share, local_resources, quota

pytestmark = pytest.mark.both_pythons


def machine(root, groups, files):
    """Folders that look like /proc and /sys: /proc/self/cgroup, and files of groups."""
    files = dict({'proc/self/cgroup': groups, 'proc/sys/kernel/random/boot_id': 'b00t\n',
                  'proc/meminfo': 'MemTotal:       1000 kB\nMemAvailable:    500 kB\n'}, **files)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


V1 = '4:memory:/\n1:cpu,cpuacct:/jobs/one\n0::/\n'


def test_no_quota(tmp_path):
    found = local_resources(machine(tmp_path, V1, {'sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_quota_us': '-1\n',
                                                   'sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_period_us': '100000\n'}))
    assert found['quota'] is None and found['boot'] == 'b00t' and found['memory'] == 1000 * 1024
    assert found['cpus']


def test_a_quota_of_version_1(tmp_path):
    root = machine(tmp_path, V1.replace('cpu,cpuacct', 'cpu'), {
        'sys/fs/cgroup/cpu/jobs/one/cpu.cfs_quota_us': '1000\n',
        'sys/fs/cgroup/cpu/jobs/one/cpu.cfs_period_us': '2500\n', 'sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us': '-1\n',
        'sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us': '2500\n', 'sys/fs/cgroup/cpu/jobs/one/cpu.cfs_burst_us': '500\n'})
    assert quota(root) == ['cpu:/jobs/one', 0.4, pytest.approx(0.0015)]


def test_the_tightest_quota_of_version_2_counts(tmp_path):
    root = machine(tmp_path, '0::/a/b\n', {'sys/fs/cgroup/a/b/cpu.max': 'max 100000\n',
                                         'sys/fs/cgroup/a/cpu.max': '150000 100000\n',
                                         'sys/fs/cgroup/cpu.max': '400000 100000\n'})
    assert quota(root) == [':/a', 1.5, pytest.approx(0.15)]


def test_a_container_sees_its_own_group_as_the_outermost(tmp_path):
    root = machine(tmp_path, '0::/docker/123\n', {'sys/fs/cgroup/cpu.max': '50000 100000\n'})
    assert quota(root) == [':/', 0.5, pytest.approx(0.05)]


def rank(boot='one', cpus=(0, 1), limit=None, memory=1000, hidden=False):
    return {'boot': boot, 'cpus': list(cpus), 'quota': limit, 'memory': memory, 'hidden': hidden}


def hosts_of(places, measurements, shares=None):
    """Return the hosts of ranks, given a letter for the place of each rank."""
    names = ['host' + place for place in places]
    return host_resources.hosts_of(list(places), names, measurements, shares or [1.0] * len(measurements))


def test_hosts_of_their_own():
    first, second = hosts_of('aab', [rank(), rank(), rank('two', range(8), memory=4000)])
    assert (first.name, first.ranks, first.cores, first.memory_bytes) == ('hosta', 2, 2, 1000)
    assert (second.name, second.ranks, second.cores, second.memory_bytes) == ('hostb', 1, 8, 4000)


def test_ranks_with_processors_of_their_own():
    host, = hosts_of('aa', [rank(cpus=[0]), rank(cpus=[1, 2])])
    assert host.cores == 3


def test_hosts_of_one_machine_share_its_processors():
    hosts = hosts_of('abcd', [rank(cpus=[0]), rank(cpus=[0]), rank(), rank(cpus=[2])])
    assert [host.cores for host in hosts] == pytest.approx([1 / 3, 1 / 3, 1 / 3 + 1, 1])
    assert [host.memory_bytes for host in hosts] == [250] * 4


def test_hosts_of_one_machine_with_quotas_of_their_own():
    """Emulated hosts are set up like this: a fifth of the machine is reserved."""
    hosts = hosts_of('abcd', [rank(cpus=[at // 2], limit=['cpu:/h%d' % at, 0.4, 0.001]) for at in range(4)])
    assert [(host.cores, host.burst_s) for host in hosts] == [(pytest.approx(0.4), 0.001)] * 4


def test_hosts_in_one_container_share_its_quota():
    hosts = hosts_of('ab', [rank(cpus=range(16), limit=['cpu:/', 3.0, 0.3])] * 2)
    assert [(host.cores, host.burst_s) for host in hosts] == [(1.5, pytest.approx(0.15))] * 2


def test_a_quota_above_the_processors_says_nothing():
    host, = hosts_of('a', [rank(cpus=[0], limit=['cpu:/', 3.0, 0.3])])
    assert (host.cores, host.burst_s) == (1, 0)


@pytest.mark.parametrize('groups, file, hidden', [
    (V1, 'cpu,cpuacct/jobs/one/tasks', True), (V1, 'cpu,cpuacct/jobs/one/cgroup.procs', False),
    ('0::/\n', 'cgroup.procs', False)], ids=['version 1, hidden', 'version 1', 'version 2'])
def test_groups_that_cannot_be_seen(tmp_path, groups, file, hidden):
    """A namespace of the network has a /sys of its own."""
    root = machine(tmp_path, groups, {'sys/fs/cgroup/' + file: ''})
    assert local_resources(root)['hidden'] is hidden


def test_an_invisible_quota_is_found_by_ranks():
    hosts = hosts_of('abcd', [rank(cpus=[at // 2], hidden=True) for at in range(4)], [0.4, 0.41, 0.48, 0.1])
    assert [(host.cores, host.burst_s) for host in hosts] == [(0.4, 0), (0.41, 0), (0.5, 0), (0.1, 0)]
    host, = hosts_of('a', [rank(cpus=[0], limit=['cpu:/', 0.5, 0.01])], [0.3])  # something else runs
    assert (host.cores, host.burst_s) == (0.5, 0.01)
    host, = hosts_of('aa', [rank(hidden=True)] * 2, [0.3, 0.4])
    assert host.cores == pytest.approx(0.7)


def test_the_share_of_a_core_that_a_thread_gets():
    assert 0.01 < core_share() <= 1.001


def test_ranks_have_to_be_numbered_host_by_host():
    with pytest.raises(InputError, match='workers 0, 2 are on host hosta'):
        hosts_of('aba', [rank()] * 3)
