"""Train while strangers send commands to the servers and talk to the job monitor: ``strangers.py directory``."""
import os
import pickle
import subprocess
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from mxhybrid.job import guard
from mxhybrid.job.join import current
from mxhybrid.messaging.sealed import Sealer, new_secret
from mxhybrid.servers.pickled import pickled
from tests.helpers.training_steps import backward

ROWS, WIDTH, STEPS = 50, 4, 6

#: Says each argument to the monitor and waits until that hangs up.
STRANGER = '''
import socket, sys
for says in sys.argv[3:]:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as sock:
        sock.sendall(says.encode())
        try:
            while sock.recv(4096):
                pass
        except ConnectionResetError:
            pass
'''


class Evil:
    """Creates a file in the process that unpickles it."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (self._path,)


def seen_by_others(secret):
    """Processes whose command line or environment shows the secret."""
    leaks = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        for name in ('cmdline', 'environ'):
            try:
                with open('/proc/%s/%s' % (pid, name), 'rb') as handle:
                    if secret.encode() in handle.read():
                        leaks.append('%s of %s' % (name, pid))
            except OSError:
                continue
    return leaks


def send_commands(native, recorded, name):
    """Send the servers messages of all kinds but a new command of this job."""
    native._send_command_to_servers(0, pickle.dumps(Evil(os.path.join(directory, 'evil' + name)), 0).decode('ascii'))
    native.set_optimizer(mx.optimizer.SGD(learning_rate=1000))  # as MXNet's own Trainer would
    forged = {'table': 'net_words_weight', 'keys': [3, 4], 'name': 'sgd', 'attributes': {'lr': 1000.0}, 'count': None}
    native._send_command_to_servers(0, pickled('optimizer', forged))
    native._send_command_to_servers(0, Sealer(new_secret()).seal('optimizer', forged))
    native._send_command_to_servers(0, '')
    for text in recorded + recorded[::-1]:
        native._send_command_to_servers(0, text)  # in order, and out of order
        native._send_command_to_servers(0, text.replace('0.5', '1000'))
        native._send_command_to_servers(0, text[:-1])


def talk_to_monitor(address):
    """Send the monitor messages that would fail the job, if it believed them."""
    says = ['{"hello": {"name": "worker 1", "rank": 1}}\n',
            '{"hello": {"name": "worker 1", "rank": 1}}\n{"fail": "it is over"}\n',
            '{"fail": "it is over"}\n', '{"done": 1}\n', '[' * 4000 + '\n']
    subprocess.run([sys.executable, '-S', '-c', STRANGER, address[0], str(address[1])] + says, timeout=60, check=True)


directory = sys.argv[1]
secrets_made = []
guard.new_secret = lambda: secrets_made.append(new_secret()) or secrets_made[-1]
store = mxhybrid.create(partitions=3)
net = SparseEmbedding(ROWS, WIDTH, prefix='net_words_')
net.initialize(mx.init.Uniform(0.1))
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.5}, kvstore=store)
native = store.backend._servers.client.native
recorded, send = [], native._send_command_to_servers
native._send_command_to_servers = lambda head, text: (recorded.append(text), send(head, text))
everyone = np.random.RandomState(1).randint(0, ROWS, (STEPS, store.num_workers, 12))
expected = None
for step, ids in enumerate(everyone):
    trainer.set_learning_rate(0.5 if step < 2 else 0.25)
    backward(net, mx.nd.array(ids[store.rank]))
    if expected is None:
        expected = net.weight.row_sparse_data(mx.nd.arange(ROWS)).asnumpy()
    trainer.step(1)
    expected -= trainer.learning_rate * np.bincount(ids.ravel(), minlength=ROWS)[:, None]
    if step in (2, 4):
        store._barrier()
        if store.backend._servers.is_root:
            talk_to_monitor(current().guard.monitor.address)
        if current().launcher == 'horovodrun':
            native._send_command_to_servers = send
            send_commands(native, list(recorded), '%d-%d' % (store.rank, step))
            native._send_command_to_servers = lambda head, text: (recorded.append(text), send(head, text))
        store._barrier()
weight = net.weight.row_sparse_data(mx.nd.arange(ROWS)).asnumpy()
report(store.rank, weight=weight, expected=expected, commands=len(recorded), secrets=secrets_made,
       seen=[place for secret in secrets_made for place in seen_by_others(secret)], own=[
           name for name, value in os.environ.items() if any(secret in value for secret in secrets_made)])
