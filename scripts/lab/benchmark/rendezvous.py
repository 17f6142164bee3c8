"""The rendezvous server of Horovod's workers: writes its port to a file, and serves until standard input ends.

Horovod asks the same of every launcher; see ``horovod/runner/gloo_run.py``.
"""
import json
import sys

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer

from lab.files import replace_file

from .interruption import die_with_parent

#: The connections that wait for the server at a time.  With Python's 5, the kernel drops connections of many workers,
#: which try again after a second or more.
_BACKLOG = 4096


def slots(names, workers):
    """Return the place of every rank, grouped by host, from the names of the hosts and the workers on each."""
    count = len(names) * workers
    return get_host_assignments([HostInfo(name, workers) for name in names], count, count)


def environment(slot, address, port, interface):
    """Return the variables that give a worker its ranks and the addresses of the other workers."""
    return {**create_slot_env_vars(slot), **create_run_env_vars(address, [interface], port)}


def main():
    """Serve the job described by a JSON object in the first argument; the second names the file for the port."""
    die_with_parent()
    RendezvousHTTPServer.request_queue_size = _BACKLOG
    server = RendezvousServer()
    port = server.start()
    server.init(slots(**json.loads(sys.argv[1])))
    replace_file(sys.argv[2], str(port))
    sys.stdin.read()


if __name__ == '__main__':
    main()
