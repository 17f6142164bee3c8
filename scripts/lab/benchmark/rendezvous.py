"""The rendezvous server of Horovod's workers: writes its port to a file, and serves until standard input ends.

Horovod asks the same of every launcher; see ``horovod/runner/gloo_run.py``.
"""
import json
import os
import sys

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer

from .interruption import die_with_parent

#: The connections that wait for the server at a time.  With Python's 5, the kernel drops connections of many workers,
#: which try again after a second or more.
_BACKLOG = 4096


def slots(names, workers):
    """Return the place of every rank, grouped by host, from the names of the hosts and the workers on each."""
    return [SlotInfo(hostname=name, rank=host * workers + local, local_rank=local, cross_rank=host,
                     size=len(names) * workers, local_size=workers, cross_size=len(names))
            for host, name in enumerate(names) for local in range(workers)]


def environment(slot, address, port, interface):
    """Variables that give a worker its ranks and the addresses of the other workers."""
    return {'HOROVOD_HOSTNAME': slot.hostname, 'HOROVOD_RANK': slot.rank, 'HOROVOD_SIZE': slot.size,
            'HOROVOD_LOCAL_RANK': slot.local_rank, 'HOROVOD_LOCAL_SIZE': slot.local_size,
            'HOROVOD_CROSS_RANK': slot.cross_rank, 'HOROVOD_CROSS_SIZE': slot.cross_size,
            'HOROVOD_CONTROLLER': 'gloo', 'HOROVOD_CPU_OPERATIONS': 'gloo', 'HOROVOD_GLOO_IFACE': interface,
            'HOROVOD_GLOO_RENDEZVOUS_ADDR': address, 'HOROVOD_GLOO_RENDEZVOUS_PORT': port}


def main():
    """Serve the job described by a JSON object in the first argument; the second names the file for the port."""
    die_with_parent()
    RendezvousHTTPServer.request_queue_size = _BACKLOG
    server = RendezvousServer()
    port = server.start()
    server.init(slots(**json.loads(sys.argv[1])))
    scratch = sys.argv[2] + '.part'
    with open(scratch, 'w') as file:
        file.write(str(port))
    os.replace(scratch, sys.argv[2])
    sys.stdin.read()


if __name__ == '__main__':
    main()
