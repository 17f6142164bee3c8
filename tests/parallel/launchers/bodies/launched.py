"""A plain dist_sync job, without mxhybrid, for the tests of scripts/launch.py: sums ones, then follows its arguments.

    launched.py [--die HOW --role ROLE --task ID] [--stay SECONDS] [--deaf] [--leave-child] [--no-store] [--idle]

The process with that role (and DMLC_TASK_ID) dies in that way instead of working: 'raise', 'exit7', or 'kill';
'tell': it first sends SIGTERM to the scheduler and to the servers, as a dying worker of mxhybrid does.
"""
import argparse
import os
import signal
import subprocess
import sys
import time

from lab.processes import MARKER, find_processes
from lab.reports import report

parser = argparse.ArgumentParser()
parser.add_argument('--die', choices=['raise', 'exit7', 'kill', 'tell'])
parser.add_argument('--role', default='worker')
parser.add_argument('--task', default=None)
parser.add_argument('--stay', type=float, default=0.0, help='seconds that a worker stays before it pushes')
parser.add_argument('--deaf', action='store_true', help='ignore SIGTERM')
parser.add_argument('--leave-child', action='store_true', help='each process starts one that outlives it')
parser.add_argument('--no-store', action='store_true', help='workers end without meeting the servers')
parser.add_argument('--idle', action='store_true', help='all processes stay, without MXNet')
args = parser.parse_args()

role = os.environ.get('DMLC_ROLE')
if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.leave_child:
    subprocess.Popen(['sleep', '600'])
if args.die and role == args.role and args.task in (None, os.environ.get('DMLC_TASK_ID')):
    if args.die == 'tell':
        for process in find_processes(os.environ[MARKER]):
            if process.role in ('server', 'scheduler'):
                os.kill(process.pid, signal.SIGTERM)
        time.sleep(1)
        sys.exit(7)
    if args.die == 'raise':
        raise RuntimeError('told to fail')
    if args.die == 'exit7':
        sys.exit(7)
    os.kill(os.getpid(), signal.SIGKILL)

if args.idle:
    if role == 'worker':
        print('worker %s of %s is up' % (os.environ['DMLC_TASK_ID'], os.environ['DMLC_NUM_WORKER']), flush=True)
    time.sleep(args.stay)
    sys.exit(0)
if role == 'worker' and args.no_store:
    sys.exit(0)

import mxnet as mx  # noqa: E402,I001  a server or scheduler works, and exits, inside this import

if role is None:  # -s 0: no tracker
    report(0, environment=dict(os.environ))
    sys.exit(0)

kv = mx.kv.create('dist_sync')
print('worker %d of %d is up' % (kv.rank, kv.num_workers), flush=True)
time.sleep(args.stay)
value = mx.nd.ones((3, 2))
kv.init(3, mx.nd.zeros((3, 2)))
kv.push(3, value * (kv.rank + 1))
kv.pull(3, out=value)
report(kv.rank, value=value, environment=dict(os.environ))
