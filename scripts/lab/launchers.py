"""The command lines that start a job under each launcher."""
import importlib.util
import os
import shlex
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / 'scripts'

#: horovodrun, which starts faster.
HOROVODRUN = str(REPOSITORY / 'mxhybrid' / 'elastic' / 'horovodrun.py')
#: Import path of the processes of jobs; with the last folder, they import MXNet in half of the time.
PYTHON_PATH = os.pathsep.join([str(REPOSITORY), str(SCRIPTS), str(SCRIPTS / 'lab' / 'startup')])
#: Environment of jobs whose memory is measured: their heap is as after the usual import of MXNet, and freed arrays go
#: back to the system at once.  By default, glibc keeps many of them, depending on the order in which threads allocate.
MEASURED_MEMORY = {'PYTHONPATH': os.pathsep.join([str(REPOSITORY), str(SCRIPTS)]), 'MALLOC_MMAP_THRESHOLD_': '1000000'}

# The wheel's launch.py calls Thread.isAlive, which CPython 3.9 removed.
STOCK_LAUNCH_WORKS = sys.version_info < (3, 9)
LAUNCHERS = ('horovodrun', 'launch.py', 'stock-launch.py', 'none')


def beside_python(name):
    """str: path of a command installed in the environment of this interpreter."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(f'{name} is not installed beside {sys.executable}')
    return str(path)


def stock_launch():
    """str: path of the launch.py that the mxnet wheel ships."""
    spec = importlib.util.find_spec('mxnet')
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f'mxnet is not installed for {sys.executable}')
    return str(Path(spec.origin).parent / 'tools' / 'launch.py')


def job_command(body, launcher='horovodrun', workers=None, servers=1, args=()):
    """list of str: the command line that starts a job; parameters as for `jobs.run_job`."""
    if launcher not in LAUNCHERS:
        raise ValueError(f'launcher {launcher!r} is none of {", ".join(LAUNCHERS)}')
    if workers is None:
        workers = 1 if launcher == 'none' else 2
    script = [sys.executable, str(body)] + [str(arg) for arg in args]
    if launcher == 'none':
        if workers != 1:
            raise ValueError(f'workers={workers}, but without a launcher there is one')
        return script
    if launcher == 'horovodrun':
        return [sys.executable, HOROVODRUN, '-np', str(workers), '--gloo'] + script
    path = str(SCRIPTS / 'launch.py') if launcher == 'launch.py' else stock_launch()
    # dmlc_tracker joins the words again without quoting them.
    return [sys.executable, path, '-n', str(workers), '-s', str(servers), '--launcher', 'local'] \
        + [shlex.quote(word) for word in script]


def over_hosts(hosts, job, interface='e0'):
    """list of str: the command line by which horovodrun starts workers on several hosts, which share an interface.

    `hosts` are pairs of a name and a number of workers; `job` has the arguments of this interpreter in every worker.
    """
    return [sys.executable, HOROVODRUN, '-np', str(sum(count for _, count in hosts)),
            '-H', ','.join('%s:%d' % host for host in hosts), '--gloo', '--network-interface', interface,
            sys.executable] + [str(word) for word in job]
