"""Checks of the host: its name, network, shared memory, limits, cores, and storage for tables."""
import contextlib
import fcntl
import json
import os
import resource
import socket
import struct
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional

from ...base.errors import SettingError
from ...base.launcher import Launch
from ...base.machine import openmp_threads
from ...base.setting_values import MEMORY
from ...base.settings import Settings, resolve
from ...base.text import size_text
from . import storage
from .findings import ADVICE, FAILED, FINE, Finding
from .processes import call_process, interpreter, package_environment, within
from .storage import GROUP

#: Descriptors that a worker needs by itself, and for each other process of the job: Horovod connects all workers with
#: each other, several times, ps-lite all workers with all servers, and all processes with worker 0.
_FILES_ALONE, _FILES_EACH = 128, 8
#: ioctl request: the address of an interface (linux/sockios.h).
_SIOCGIFADDR = 0x8915
#: Bytes of /dev/shm below which MXNet's DataLoader with worker processes runs out of them, and commits of models may.
_SMALL_SHM = 256 << 20


def _name(launch: Launch, seconds: float) -> Finding:
    name = socket.gethostname()
    data: Dict[str, Any] = {'host': name}
    advice = 'give the name its network address: a line "<address> %s" in /etc/hosts in place of any other' % name
    began = time.monotonic()
    try:
        address = within(seconds, lambda: socket.gethostbyname(name))
    except OSError as error:
        return Finding(GROUP, 'name', FAILED, 'host name %r does not resolve (%s): Horovod looks it up and would crash'
                       % (name, error), advice, data)
    data.update(address=address, seconds=round(time.monotonic() - began, 3))
    text = 'host name %s is %s' % (name, address)
    if address.startswith('127.'):
        text += ', which other hosts cannot reach'
        if launch.several_hosts:
            return Finding(GROUP, 'name', FAILED, text + ', but Horovod tells them this address', advice, data)
        if launch.several_hosts is None:
            return Finding(GROUP, 'name', ADVICE, text + ': a job on several hosts will fail', advice, data)
        return Finding(GROUP, 'name', FINE, text + ': fine for a job on one host', advice, data)
    if data['seconds'] > 1:
        return Finding(GROUP, 'name', ADVICE, text + ', but the look-up took %.1f s' % data['seconds'], advice, data)
    return Finding(GROUP, 'name', FINE, text, data=data)


def _addresses() -> Dict[str, str]:
    """Return one IPv4 address of each interface, from the kernel, since psutil may be missing or broken."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack('16s24x', name.encode()))
            except OSError:
                continue  # it has no address
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def _interfaces(launch: Launch) -> Finding:
    addresses = _addresses()
    text = 'interfaces: ' + (', '.join('%s %s' % pair for pair in sorted(addresses.items())) or 'none with IPv4')
    interface = launch.interface
    data = {'addresses': addresses, 'wanted': interface}
    if interface and interface not in addresses:
        return Finding(GROUP, 'interfaces', FAILED, 'HOROVOD_GLOO_IFACE=%s has no IPv4 address; %s' % (interface, text),
                       'choose one of these with horovodrun --network-interface', data)
    text += '; Horovod uses %s' % interface if interface else ''
    others = [address for address in addresses.values() if not address.startswith('127.')]
    if launch.several_hosts and not others:
        return Finding(GROUP, 'interfaces', FAILED, text + ': no network to other hosts', 'connect the host', data)
    return Finding(GROUP, 'interfaces', FINE, text, data=data)


def _own_addresses(interface: Optional[str]) -> List[str]:
    """Return the addresses on which this host's processes will listen."""
    addresses = ['127.0.0.1']
    with contextlib.suppress(KeyError, OSError):  # other checks report it
        addresses.append(_addresses()[interface] if interface else socket.gethostbyname(socket.gethostname()))
    return list(dict.fromkeys(addresses))


def _speak(address: str, seconds: float) -> None:
    """Listen on a port that the system chooses, connect to it, and send a byte."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(seconds)
        with socket.create_connection(server.getsockname(), timeout=seconds) as client:
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(seconds)
                client.sendall(b'!')
                if accepted.recv(1) != b'!':
                    raise OSError('the byte that was sent did not arrive')


def _ports(launch: Launch, seconds: float) -> Finding:
    addresses: List[str] = []
    try:
        addresses = within(seconds, lambda: _own_addresses(launch.interface))
        for address in addresses:
            _speak(address, seconds)
    except OSError as error:
        return Finding(GROUP, 'ports', FAILED, 'cannot listen on, or connect to, a port of %s (%s)'
                       % (addresses[-1] if addresses else 'this host', error),
                       'allow TCP between the ports that the system gives to processes, see '
                       '/proc/sys/net/ipv4/ip_local_port_range, in firewalls and containers', {'addresses': addresses})
    return Finding(GROUP, 'ports', FINE, 'can listen on and connect to ports of ' + ' and '.join(addresses),
                   data={'addresses': addresses})


def _shared_memory(seconds: float) -> Finding:
    data: Dict[str, Any] = {}
    with contextlib.suppress(OSError):
        status = os.statvfs('/dev/shm')
        data.update(shm=status.f_blocks * status.f_frsize, shm_free=status.f_bavail * status.f_frsize)
    ended = call_process(interpreter() + ['-m', 'mxhybrid.commands.checks.try_shared_memory'], seconds,
                         package_environment())
    if 'ModuleNotFoundError' in ended.last_words():
        return Finding(GROUP, 'shared memory', ADVICE, 'shared memory was not tried: ' + ended.last_words(),
                       'see the packages that are not installed', data)
    if ended.status != 0:
        return Finding(GROUP, 'shared memory', FAILED, 'processes cannot share memory: the test %s: %s'
                       % (ended.how(seconds), ended.last_words()),
                       'allow memfd_create and Unix sockets, or switch the lane off: MXHYBRID_ROW_TRANSPORT=ps-lite',
                       data)
    text = 'processes can share memory (memfd); /dev/shm %s' % (
        'has %s, %s free' % (size_text(data['shm']), size_text(data['shm_free'])) if data else 'is missing')
    if data.get('shm_free', 0) < _SMALL_SHM:
        return Finding(GROUP, 'shared memory', ADVICE, text + ": too little for Gluon's DataLoader with num_workers",
                       'docker run --shm-size=2g, or a larger tmpfs; mxhybrid itself does not need it', data)
    return Finding(GROUP, 'shared memory', FINE, text, data=data)


def _commits(seconds: float) -> Finding:
    ended = call_process(interpreter() + ['-m', 'mxhybrid.elastic.keeper', '--check'], seconds, package_environment())
    if ended.status != 0:
        return Finding(GROUP, 'commits', ADVICE, 'elastic jobs cannot hold commits in memory: the test %s: %s'
                       % (ended.how(seconds), ended.last_words()),
                       'they continue from checkpoints on disk only; see the message')
    data = json.loads(ended.output)
    text = 'elastic jobs hold commits in %s, %s free' % ('/dev/shm' if data['has_name'] else 'memory without a name',
                                                         size_text(data['free_bytes']))
    if data['has_name'] and data['free_bytes'] < _SMALL_SHM:
        return Finding(GROUP, 'commits', ADVICE, text + ': they need up to three times the size of weights and state',
                       'docker run --shm-size=2g, or more, or allow mount namespaces', data)
    return Finding(GROUP, 'commits', FINE, text, data=data)


def _files(launch: Launch) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = launch.workers or 1
    others = workers + (workers if launch.servers is None else launch.servers)
    needed = _FILES_ALONE + _FILES_EACH * others
    unlimited = soft == resource.RLIM_INFINITY
    data = {'soft': soft, 'hard': hard, 'needed': needed}
    text = 'open files: %s allowed' % ('any number' if unlimited else soft)
    if not unlimited and soft < needed:
        return Finding(GROUP, 'open files', FAILED,
                       text + ', a job of %d workers may need %d' % (workers, needed),
                       'ulimit -n %d in the shell that starts the job, or on each host' % max(4096, needed), data)
    return Finding(GROUP, 'open files', FINE, text + ', at most %d needed' % needed, data=data)


def _cores(launch: Launch) -> Finding:
    cores = len(os.sched_getaffinity(0))
    setting = openmp_threads()
    threads, workers = setting or cores, launch.local_workers or 1
    data = {'cores': cores, 'threads': threads, 'workers': workers, 'set': setting is not None}
    text = '%d core%s, OMP_NUM_THREADS is %s' % (cores, 's' * (cores != 1), setting or 'not set')
    if workers * threads > cores and workers > 1:
        return Finding(GROUP, 'cores', ADVICE, text + ': %d workers start %d compute threads each' % (workers, threads),
                       'export OMP_NUM_THREADS=%d' % max(1, cores // workers), data)
    return Finding(GROUP, 'cores', FINE, text, data=data)


def check(launch: Launch, seconds: float) -> List[Finding]:
    """Check this host for the job of `launch`; anything that may block gets `seconds`."""
    try:
        settings = resolve()
    except SettingError:  # other checks report it
        settings = Settings()
    checks: List[Callable[[], Finding]] = [
        lambda: _name(launch, seconds), lambda: _interfaces(launch), lambda: _ports(launch, seconds),
        lambda: _shared_memory(seconds), lambda: _commits(seconds), lambda: _files(launch), lambda: _cores(launch),
        storage.memory]
    directories = dict.fromkeys(path for _, path in settings.storage if path != MEMORY)
    checks += [partial(storage.check_directory, directory) for directory in directories]
    return [_guarded(host_check) for host_check in checks] + storage.check_budget(settings)


def _guarded(host_check: Callable[[], Finding]) -> Finding:
    """Return the finding of a check, or a finding about the error that it raised."""
    try:
        return host_check()
    except Exception as error:
        return Finding(GROUP, 'a check', ADVICE, 'a check could not be made (%s: %s)' % (type(error).__name__, error),
                       'please report it, with the output of: mxhybrid env')
