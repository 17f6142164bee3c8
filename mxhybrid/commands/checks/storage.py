"""Checks of the memory and of the directories that a host has for the rows of dynamic tables."""
from typing import List

from ...base.machine import available_bytes, cgroup_limit, total_bytes
from ...base.settings import Settings, variable
from ...base.storage_probe import problem_with, reserves_blocks, volume_of
from ...base.text import size_text
from .findings import ADVICE, FAILED, FINE, Finding

GROUP = 'Host'
#: The name of the finding about a directory begins with this.
NAME = 'storage of '


def memory() -> Finding:
    """Return the memory that is free on this host."""
    free, total, limit = available_bytes(), total_bytes(), cgroup_limit()
    text = '%s of %s of memory free for workers and the rows of tables' % (size_text(free), size_text(total))
    if limit is not None:
        text += '; the limit of the cgroup is %s' % size_text(limit)
    return Finding(GROUP, 'memory', FINE, text, data={'free': free, 'total': total, 'limit': limit})


def check_directory(directory: str) -> Finding:
    """Check that this host can keep rows in files of a directory."""
    name = NAME + directory
    problem = problem_with(directory)
    if problem:
        return Finding(GROUP, name, FAILED, '%s=%s %s' % (variable('storage'), directory, problem),
                       'give a directory that exists, can be written and has room on every host with servers')
    volume = volume_of(directory)
    data = {'free': volume.free_bytes, 'size': volume.size_bytes, 'kind': volume.kind, 'source': volume.source,
            'identity': volume.identity}
    text = '%s has %s of %s free for rows of dynamic tables (%s, %s)' % (
        directory, size_text(volume.free_bytes), size_text(volume.size_bytes), volume.kind, volume.source)
    if volume.kind in ('tmpfs', 'ramfs'):
        return Finding(GROUP, name, ADVICE, text + ': its files are in memory',
                       'give a directory on a disk, or keep the rows in memory: storage=memory', data)
    if not reserves_blocks(directory):
        return Finding(GROUP, name, ADVICE, text + ', but it cannot reserve blocks: to grow, files are filled with '
                       'zeros, which is slow', 'give a directory on a local disk with ext4 or xfs', data)
    if volume.is_remote:
        return Finding(GROUP, name, ADVICE, text + ': rows cross the network',
                       'give a directory on a local disk of each host', data)
    return Finding(GROUP, name, FINE, text, data=data)


def check_budget(settings: Settings) -> List[Finding]:
    """Check that the resident memory which servers may use for rows in files is free."""
    free = available_bytes()
    for _, size_bytes in settings.storage_memory:
        needed = size_bytes * settings.servers_per_host
        if needed > free:
            return [Finding(GROUP, 'budget of tables', ADVICE,
                            '%s allows %s of memory to a table on each of %d server%s of a host, but %s are free'
                            % (variable('storage_memory'), size_text(size_bytes), settings.servers_per_host,
                               's' * (settings.servers_per_host != 1), size_text(free)),
                            'give less, or leave it out: then the system decides which pages stay in memory')]
    return []
