"""Checks of the host: its name, network, shared memory, limits and cores."""
import fcntl
import os
import resource
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional

from ...base.launcher import Launch
from ...base.machine import available_bytes
from ...base.text import size_text
from .findings import ADVICE, FAILED, FINE, Finding
from .processes import OutOfTime, call_process, interpreter, package_environment, within

GROUP = 'Host'

#: Descriptors that a worker needs by itself, and for each other process of the job: Horovod connects all workers with
#: each other, several times, ps-lite all workers with all servers, and everybody with worker 0.
_FILES_ALONE, _FILES_EACH = 128, 8
#: ioctl request: the address of an interface (linux/sockios.h).
_SIOCGIFADDR = 0x8915
#: Below that, MXNet's DataLoader with worker processes runs out of /dev/shm.
_SMALL_SHM = 256 << 20


def _name(launch: Launch, seconds: float) -> Finding:
    name = socket.gethostname()
    data: Dict[str, Any] = {'host': name}
    advice = 'give the name its network address: a line "<address> %s" in /etc/hosts in place of any other' % name
    began = time.monotonic()
    try:
        address = within(seconds, lambda: socket.gethostbyname(name))
    except (OSError, OutOfTime) as error:
        return Finding(GROUP, 'name', FAILED, 'host name %r does not resolve (%s), and Horovod, which looks it up, '
                       'would crash' % (name, error), advice, data)
    data.update(address=address, seconds=round(time.monotonic() - began, 3))
    text = 'host name %s is %s' % (name, address)
    if address.startswith('127.'):
        text += ', which other hosts cannot reach'
        if launch.several_hosts:
            return Finding(GROUP, 'name', FAILED, text + ', but Horovod tells them this address', advice, data)
        if launch.several_hosts is None:
            return Finding(GROUP, 'name', ADVICE, text + '; fails in a job over several hosts', advice, data)
        return Finding(GROUP, 'name', FINE, text + ': fine on one host only', advice, data)
    if data['seconds'] > 1:
        return Finding(GROUP, 'name', ADVICE, text + ', but finding that took %.1f s' % data['seconds'], advice, data)
    return Finding(GROUP, 'name', FINE, text, data=data)


def _addresses() -> Dict[str, str]:
    """IPv4 addresses by interface, one of each; by the kernel, since psutil may be missing or broken."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack('16s24x', name.encode()))
            except OSError:
                continue  # it has none
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def _interfaces(launch: Launch) -> Finding:
    addresses = _addresses()
    text = 'interfaces: ' + (', '.join('%s %s' % pair for pair in sorted(addresses.items())) or 'none with IPv4')
    wanted = launch.interface
    data = {'addresses': addresses, 'wanted': wanted}
    if wanted and wanted not in addresses:
        return Finding(GROUP, 'interfaces', FAILED, 'HOROVOD_GLOO_IFACE=%s has no IPv4 address; %s' % (wanted, text),
                       'choose one of these with horovodrun --network-interface', data)
    text += '; Horovod uses %s' % wanted if wanted else ''
    others = [address for address in addresses.values() if not address.startswith('127.')]
    if launch.several_hosts and not others:
        return Finding(GROUP, 'interfaces', FAILED, text + ': no network to other hosts', 'connect the host', data)
    return Finding(GROUP, 'interfaces', FINE, text, data=data)


def _own_addresses(interface: Optional[str]) -> List[str]:
    """Addresses on which this host's processes will listen."""
    found = ['127.0.0.1']
    try:
        found.append(_addresses()[interface] if interface else socket.gethostbyname(socket.gethostname()))
    except (KeyError, OSError):
        pass  # other checks say so
    return list(dict.fromkeys(found))


def _speak(address: str, seconds: float) -> int:
    """Listen on a port that the system chooses, connect to it, send something; returns the port."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(seconds)
        port = server.getsockname()[1]
        with socket.create_connection((address, port), timeout=seconds) as client:
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(seconds)
                client.sendall(b'!')
                if accepted.recv(1) != b'!':
                    raise OSError('what was sent did not arrive')
    return port


def _ports(launch: Launch, seconds: float) -> Finding:
    addresses: List[str] = []
    try:
        addresses = within(seconds, lambda: _own_addresses(launch.interface))
        for address in addresses:
            _speak(address, seconds)
    except (OSError, OutOfTime) as error:
        return Finding(GROUP, 'ports', FAILED, 'cannot listen on, or connect to, a port of %s (%s)'
                       % (addresses[-1] if addresses else 'this host', error),
                       'allow TCP between the ports that the system gives to processes, see '
                       '/proc/sys/net/ipv4/ip_local_port_range, in firewalls and containers', {'addresses': addresses})
    return Finding(GROUP, 'ports', FINE, 'can listen on and connect to ports of ' + ' and '.join(addresses),
                   data={'addresses': addresses})


def _shared_memory(seconds: float) -> Finding:
    data: Dict[str, Any] = {}
    try:
        status = os.statvfs('/dev/shm')
        data.update(shm=status.f_blocks * status.f_frsize, shm_free=status.f_bavail * status.f_frsize)
    except OSError:
        pass
    ended = call_process(interpreter() + ['-m', 'mxhybrid.commands.checks.try_shared_memory'], seconds,
                         package_environment())
    if 'ModuleNotFoundError' in ended.last_words():
        return Finding(GROUP, 'shared memory', ADVICE, 'shared memory was not tried: ' + ended.last_words(),
                       'see what is not installed', data)
    if ended.status != 0:
        return Finding(GROUP, 'shared memory', FAILED, 'processes cannot share memory: a try %s: %s'
                       % (ended.how(seconds), ended.last_words()),
                       'allow memfd_create and Unix sockets, or do without the lane: MXHYBRID_WIRE=ps-lite', data)
    text = 'processes can share memory (memfd); /dev/shm %s' % (
        'has %s, %s free' % (size_text(data['shm']), size_text(data['shm_free'])) if data else 'is missing')
    if data.get('shm_free', 0) < _SMALL_SHM:
        return Finding(GROUP, 'shared memory', ADVICE, text + ": little for Gluon's DataLoader with num_workers",
                       'docker run --shm-size=2g, or a larger tmpfs; mxhybrid itself does not need it', data)
    return Finding(GROUP, 'shared memory', FINE, text, data=data)


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
                       'ulimit -n %d in the shell that launches, or on each host' % max(4096, needed), data)
    return Finding(GROUP, 'open files', FINE, text + ', %d needed at most' % needed, data=data)


def _cores(launch: Launch) -> Finding:
    cores = len(os.sched_getaffinity(0))
    given = os.environ.get('OMP_NUM_THREADS', '').partition(',')[0]
    threads = int(given) if given.isdigit() and int(given) else cores
    workers = launch.local_workers or 1
    data = {'cores': cores, 'threads': threads, 'workers': workers, 'set': bool(given)}
    text = '%d core%s, OMP_NUM_THREADS %s' % (cores, 's' * (cores != 1), 'is ' + given if given else 'is not set')
    if workers * threads > cores and workers > 1:
        return Finding(GROUP, 'cores', ADVICE, text + ': %d workers start %d compute threads each' % (workers, threads),
                       'export OMP_NUM_THREADS=%d' % max(1, cores // workers), data)
    return Finding(GROUP, 'cores', FINE, text, data=data)


def _memory() -> Finding:
    free = available_bytes()
    return Finding(GROUP, 'memory', FINE, '%s of memory free' % size_text(free), data={'free': free})


def check(launch: Launch, seconds: float) -> List[Finding]:
    """Look at this host, which must be fit for the job of `launch`; `seconds` are for whatever could block."""
    checks: List[Callable[[], Finding]] = [
        lambda: _name(launch, seconds), lambda: _interfaces(launch), lambda: _ports(launch, seconds),
        lambda: _shared_memory(seconds), lambda: _files(launch), lambda: _cores(launch), _memory]
    return [_guarded(one) for one in checks]


def _guarded(one: Callable[[], Finding]) -> Finding:
    """A check that cannot be made at all is a finding, too."""
    try:
        return one()
    except Exception as error:
        return Finding(GROUP, 'a check', ADVICE, 'a check could not be made (%s: %s)' % (type(error).__name__, error),
                       'please report it, with the output of: mxhybrid env')
