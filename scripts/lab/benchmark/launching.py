"""Starts the job of each contender: its helper processes, and the variables that tell its workers their ranks."""
import json
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional

from . import rendezvous
from .contender_job import ContenderJob
from .testbeds import Loopback

#: Every contender, in the order in which they take turns.
CONTENDERS = ('hybrid', 'hybrid_prefetch', 'hybrid_stale', 'hybrid_engines', 'hybrid_float16', 'hybrid_int8',
              'dist_sync', 'horovod_gather', 'horovod_dense', 'torch_sharded', 'torchrec')

_BY_TORCH = ('torch_sharded', 'torchrec')

#: Why most workloads leave torchrec out.
FOR_RECOMMENDERS = 'it only trains recommenders'

#: The types to which contenders round values before they travel.
ROUNDED = {'hybrid_float16': 'float16', 'hybrid_int8': 'int8'}

_GLOO_TIMEOUT_S = 300


def start(job: ContenderJob, contender: str, argv: List[str], env: Dict[str, str],
          torch_python: Optional[str] = None) -> None:
    """Start all processes of a job.

    The interpreter of each worker, which is `torch_python` for PyTorch's contenders, has the arguments `argv`, and the
    variables `env` and that of its rank.
    """
    network, size = job.testbed, job.hosts * job.workers
    on_one_host = isinstance(network, Loopback)
    python = torch_python if contender in _BY_TORCH and torch_python else sys.executable
    by_rank: List[Dict[str, Any]] = [{} for _ in range(size)]
    if contender == 'dist_sync':
        common = {'DMLC_PS_ROOT_URI': network.address(0), 'DMLC_PS_ROOT_PORT': job.reserve_port(),
                  'DMLC_NUM_WORKER': size, 'DMLC_NUM_SERVER': job.hosts, 'DMLC_INTERFACE': network.link}
        # These processes never return from the import of mxnet.
        serve = [sys.executable, '-c',
                 'from lab.benchmark.interruption import die_with_parent; die_with_parent(); import mxnet']
        job.start_helper('scheduler', 0, serve,
                         dict(common, DMLC_ROLE='scheduler', DMLC_NODE_HOST=network.address(0)))
        for host in range(job.hosts):
            job.start_helper('server %d' % host, host, serve,
                             dict(common, DMLC_ROLE='server', DMLC_NODE_HOST=network.address(host)))
        by_rank = [dict(common, DMLC_ROLE='worker', DMLC_NODE_HOST=network.address(rank // job.workers))
                   for rank in range(size)]
    elif contender in _BY_TORCH:
        port = job.reserve_port()
        by_rank = [{'MASTER_ADDR': network.address(0), 'MASTER_PORT': port, 'GLOO_SOCKET_IFNAME': network.link}] * size
    else:
        port = job.start_rendezvous()
        names = [network.name(host) for host in range(job.hosts)]
        slots = rendezvous.slots(names[:1], size) if on_one_host else rendezvous.slots(names, job.workers)
        # Many workers on few cores may need more than Horovod's 30 s to find each other.
        by_rank = [dict(rendezvous.environment(slot, network.address(0), port, network.link),
                        HOROVOD_GLOO_TIMEOUT_SECONDS=_GLOO_TIMEOUT_S) for slot in slots]
        if contender.startswith('hybrid'):
            # As many servers as dist_sync gets: one for each host that there is or would be.
            servers = {'MXHYBRID_SERVERS_PER_HOST': job.hosts if on_one_host else 1}
            by_rank = [dict(servers, **values) for values in by_rank]
    for rank, values in enumerate(by_rank):
        job.start_worker(rank, [python] + argv, dict(values, **env, MXHYBRID_BENCH_RANK=str(rank)))


def measure(job: ContenderJob, contender: str, spec: Dict[str, Any], torch_python: Optional[str] = None,
            after_start: Callable[[], None] = lambda: None) -> List[Dict[str, Any]]:
    """Run the workers of a job, whose task is `spec`, to their end; return their readings."""
    spec = {'contender': contender, 'hosts': job.hosts, 'workers': job.workers, 'interface': job.testbed.counted,
            'directory': str(job.directory), **spec}
    start(job, contender, ['-m', 'lab.benchmark.worker'], {'MXHYBRID_BENCH_SPEC': json.dumps(spec)}, torch_python)
    after_start()
    job.wait()
    return job.readings()


def torch_missing(python: Optional[str], *modules: str) -> Optional[str]:
    """Return why the interpreter of --torch-python cannot be used, or None; it must import the modules."""
    if not python:
        return 'no --torch-python was given'
    try:
        ended = subprocess.run([python, '-c', 'import ' + ', '.join(modules)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    except OSError as error:
        return '--torch-python %s: %s' % (python, error.strerror)
    return '--torch-python %s: it cannot import %s' % (python, ' and '.join(modules)) if ended.returncode else None
