"""What goes wrong: to a process, to a link, to a host."""
import contextlib
import os
import signal
import subprocess
import threading
import time

from lab.emulation import INTERFACE, run

SIGNALS = {'kill': signal.SIGKILL, 'stop': signal.SIGSTOP, 'term': signal.SIGTERM, 'int': signal.SIGINT}

#: A slow link, in 10^6 bits per second, and a slow host's share of the time in which its processes may run.
SLOW_MBIT_PER_S, SLOW_RUN_S, SLOW_STOP_S = 4, 0.05, 0.15


def hit(pid, fault):
    """Send the signal of a fault."""
    os.kill(pid, SIGNALS[fault])


def set_link(cluster, host, up):
    """Plug or unplug the cable between a host and the switch."""
    run('ip', '-n', cluster.switch, 'link', 'set', 'port%d' % host, 'up' if up else 'down')


class SlowHost:
    """A host whose link and whose processes are slow, from the start of a `with` block to its end."""

    def __init__(self, cluster, host, pids):
        self._cluster, self._host, self._pids = cluster, host, pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._slow_down)

    def __enter__(self):
        for namespace, interface in ((self._cluster.hosts[self._host].namespace, INTERFACE),
                                     (self._cluster.switch, 'port%d' % self._host)):
            run('tc', '-n', namespace, 'qdisc', 'replace', 'dev', interface, 'root', 'tbf', 'rate',
                '%dmbit' % SLOW_MBIT_PER_S, 'burst', '20000', 'latency', '200ms')
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._over.set()
        self._thread.join()
        for namespace, interface in ((self._cluster.hosts[self._host].namespace, INTERFACE),
                                     (self._cluster.switch, 'port%d' % self._host)):
            run('tc', '-n', namespace, 'qdisc', 'delete', 'dev', interface, 'root')

    def _slow_down(self):
        while not self._over.is_set():
            pids = self._pids()
            self._send(pids, signal.SIGSTOP)
            time.sleep(SLOW_STOP_S)
            self._send(pids, signal.SIGCONT)
            time.sleep(SLOW_RUN_S)

    @staticmethod
    def _send(pids, number):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def small_disk(directory, size):
    """A file system of its own for a directory, which is soon full."""
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=%s' % size, 'chaos', directory], check=True)
    try:
        yield
    finally:
        subprocess.run(['umount', '-l', directory], check=True)
