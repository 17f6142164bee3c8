"""Make the calls of training scripts around their loop; each case reports weights, as in ``train.py``.

``--in-thread`` has threads that end make the first store and train.  Cases in which the script ends are by themselves:
``--end NAME``.
"""
import asyncio
import atexit
import code
import concurrent.futures
import contextlib
import gc
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from unittest import mock

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from train import BATCH, LOSS, ROWS, Worker, backward, batches, filled, fit, parser_of, weights

import mxhybrid
from tests.helpers.outcomes import error_of
from tests.helpers.training_steps import TwoTables

STEPS = 9
LIMIT_S = 60


def make(worker, sparse_weight=True, **options):
    """A filled model and its Trainer."""
    net = filled(TwoTables(ROWS, (4, 3), ids_per_sample=3, outputs=2, sparse_weight=sparse_weight))
    return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.3, 'momentum': 0.9},
                              kvstore=worker.store(**options), **options)


def around(act, every=1):
    """Return a case that calls ``act(worker)`` before each step, or some."""
    def case(worker, net, trainer):
        return fit(worker, net, trainer, steps=STEPS,
                   before=lambda step, trainer: act(worker) if step % every == every - 1 else None)
    return case


# -- processes ---------------------------------------------------------------------------------------------------


def _process(method):
    process = multiprocessing.get_context(method).Process(target=len, args=('',))
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 0, process.exitcode


def forks(worker):
    """Fork right after a step."""
    _process('fork')


def _status_of_child(act):
    """Fork a process that calls `act`, which ends it; return its exit status."""
    pid = os.fork()
    if not pid:
        act()
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert os.WIFEXITED(status), status
            return os.WEXITSTATUS(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError('a forked process did not end')


def child_exits(worker):
    """A forked process ends like a script."""
    assert _status_of_child(lambda: sys.exit(3)) == 3


def child_raises(worker):
    """A forked process ends with an exception that nobody catches."""
    def act():
        sys.stderr = io.StringIO()
        raise ValueError('this child fails')
    assert _status_of_child(act) == 1


def child_computes(worker):
    """A forked process uses MXNet."""
    assert _status_of_child(lambda: os._exit(int(mx.nd.ones(5).sum().asscalar()))) == 5


def child_calls_store(worker):
    """A forked process is told that it is no member of the job."""
    def act():
        said = error_of(worker._first.init, 'never', mx.nd.zeros(3), kind=mxhybrid.JobError)
        os._exit(7 if 'forked from worker %d' % worker.rank in said else 8)
    assert not worker.hybrid or _status_of_child(act) == 7


def programs(worker):
    """Programs, with and without Python code between fork and exec."""
    subprocess.run(['true'], check=True, timeout=LIMIT_S)
    subprocess.run(['true'], check=True, timeout=LIMIT_S, preexec_fn=os.getpid)
    assert os.system('true') == 0


def pictures(worker):
    """PIL, imported after the store was made, writes and reads pictures; MXNet reads them, too."""
    from PIL import Image
    values = np.random.RandomState(1).randint(0, 256, (16, 24, 3)).astype(np.uint8)
    for form in ('JPEG', 'PNG', 'TIFF', 'WEBP'):
        file = io.BytesIO()
        Image.fromarray(values).save(file, form)
        read = np.array(Image.open(file))
        assert read.shape == values.shape and (form in ('JPEG', 'WEBP') or (read == values).all())
        if form in ('JPEG', 'PNG'):
            assert abs(mx.image.imdecode(file.getvalue()).asnumpy().astype(int) - read).max() <= 8


def mid_step(worker):
    """Processes between the exchange of gradients and the update."""
    net, trainer = make(worker, False, update_on_kvstore=False)
    for batch in list(zip(*batches()))[:STEPS]:
        backward(worker, net, *batch)
        subprocess.run(['true'], check=True, timeout=LIMIT_S)
        trainer.allreduce_grads()
        _process('fork')
        trainer.update(BATCH)
    return weights(net)


def pools(worker, net, trainer):
    """A pool of forked processes that lives for the whole training."""
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool:
        found = []
        result = fit(worker, net, trainer, steps=STEPS, before=lambda step, _: found.append(pool.submit(abs, -step)))
        assert [one.result(LIMIT_S) for one in found] == list(range(STEPS))
    return result


def _feed(batches, queue):
    for batch in batches:
        queue.put(batch)


def loaders(worker, net, trainer):
    """MXNet's data loader, and a process that feeds a queue as PyTorch's does, both started in the middle."""
    fit(worker, net, trainer, steps=3)
    ids, targets = batches(6)
    size = BATCH // worker.size
    mine = [np.concatenate([batch[worker.rank::worker.size] for batch in all_of][:4]) for all_of in (ids, targets)]
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(*mine), batch_size=size, num_workers=2, timeout=LIMIT_S)
    queue = multiprocessing.get_context('fork').Queue(2)
    feeder = multiprocessing.get_context('fork').Process(target=_feed, daemon=True, args=(
        [(mine[0][at:at + size], mine[1][at:at + size]) for at in range(0, 4 * size, size)], queue))
    for start, source in ((lambda: None, iter(loader)), (feeder.start, iter(lambda: queue.get(timeout=LIMIT_S), None))):
        start()
        for _, (x, y) in zip(range(4), source):
            with autograd.record():
                output = LOSS(net(mx.nd.array(x)), mx.nd.array(y))
            output.backward()
            trainer.step(BATCH)
    feeder.join(LIMIT_S)
    return weights(net)


def spawned(worker, net, trainer):
    """Processes started afresh, which import this program: on the way, and one that fails."""
    fit(worker, net, trainer, steps=3)
    _process('spawn')
    sleeper = subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # Not in the working directory, from which `python -c` imports.
        if worker.rank == 0:
            failing = subprocess.run([sys.executable, '-c', 'import mxhybrid; raise ValueError()'], timeout=LIMIT_S,
                                     stderr=subprocess.DEVNULL, cwd='/')
            assert failing.returncode == 1
        program = 'import mxhybrid; store = mxhybrid.create(); assert store.num_workers == 1, store.num_workers'
        subprocess.run([sys.executable, '-c', program], check=True, timeout=LIMIT_S, cwd='/')
        result = fit(worker, net, trainer, steps=3, seed=6)
        assert sleeper.poll() is None, 'the job ended a process that is none of its own'
        return result
    finally:
        sleeper.kill()
        sleeper.wait()


# -- threads and signals -----------------------------------------------------------------------------------------


def in_a_thread(function, *args):
    """Call a function in a thread that ends; not one of a pool, from which CPython's multiprocessing cannot fork."""
    result = concurrent.futures.Future()

    def call():
        try:
            result.set_result(function(*args))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return result.result()


def in_threads(worker, net, trainer):
    """Make each part of the training in a thread of its own, which ends."""
    for seed in (5, 6, 7):
        result = in_a_thread(fit, worker, net, trainer, seed, 3)
    return result


def beside_threads(worker, net, trainer):
    """A thread that starts programs and collects garbage during the training."""
    stop, rounds = threading.Event(), []

    def busy():
        while not stop.is_set():
            if worker.hybrid:  # on CPython 3.8 MXNet alone may lose an operation, and hang
                subprocess.run(['true'], check=True, timeout=LIMIT_S)
            gc.collect()
            rounds.append(1)
            stop.wait(0.02)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        return fit(worker, net, trainer, steps=STEPS)
    finally:
        stop.set()
        thread.join(LIMIT_S)
        assert rounds


def in_event_loop(worker):
    """Training inside of a coroutine."""
    async def train():
        net, trainer = make(worker)
        return fit(worker, net, trainer, steps=STEPS)
    return asyncio.run(train())


def signals(worker, net, trainer):
    """A timer's signals interrupt whatever the script does, and their handler starts a program now and then."""
    count = [0]

    def tick(number, frame):
        count[0] += 1
        if count[0] % 10 == 0:
            subprocess.run(['true'], check=True, timeout=LIMIT_S)

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    try:
        return fit(worker, net, trainer, steps=STEPS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        assert count[0]


# -- the script ----------------------------------------------------------------------------------------------------


def cells(worker):
    """A console, as a notebook has: an error ends its cell only."""
    names = {'worker': worker, 'make': make, 'fit': fit}
    console = code.InteractiveConsole(names)
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        for line in ('net, trainer = make(worker)', 'first = fit(worker, net, trainer, steps=3)', 'first.nonsense',
                     'result = fit(worker, net, trainer, steps=3, seed=6)'):
            assert not console.push(line)
    assert 'nonsense' in shown.getvalue()
    return names['result']


def caught(worker, net, trainer):
    """Errors that the script catches, on all workers or on one, in calls, forward passes and records."""
    fit(worker, net, trainer, steps=2)
    for wrong in (lambda: trainer.step('many'), lambda: net(mx.nd.ones((2, 2))),
                  lambda: trainer._kvstore.pull('nobody', mx.nd.zeros(2)) if worker.hybrid else 1 / 0):
        try:
            with autograd.record():
                wrong()
        except Exception:  # the errors of MXNet and of the store are of many kinds
            continue
        raise AssertionError('nothing was raised')
    if worker.rank == 0:
        with contextlib.suppress(mx.base.MXNetError), autograd.record():
            net(mx.nd.ones((2, 2)))
    return fit(worker, net, trainer, steps=3, seed=6)


def evaluates(worker, net, trainer):
    """Let one worker evaluate, save and look at values while the others go on."""
    ids, _ = batches(9)
    outputs = []

    def evaluate():
        if worker.rank == 0:
            outputs.append(net(mx.nd.array(ids[0])).asnumpy())
        worker.barrier()  # the position of the other workers, not inside a function that an evaluation might call

    def look(step, trainer):
        if step % 3 == 2:
            before = weights(net)
            evaluate()
            with tempfile.TemporaryDirectory() as directory:
                net.save_parameters(os.path.join(directory, 'net.params'))
            for name, values in weights(net).items():
                np.testing.assert_array_equal(values, before[name])

    evaluate()
    result = fit(worker, net, trainer, steps=STEPS, before=look)
    net.gradient.weight.set_data(mx.nd.ones((ROWS, 3)))
    net.weight.weight.set_data(mx.nd.ones((ROWS, 4)).tostype('row_sparse'))
    evaluate()
    result.update(fit(worker, net, trainer, steps=3, seed=6))
    held, own = weights(net)['00'], weights(net)['01']
    evaluate()
    net.gradient.weight.set_data(mx.nd.array(own))
    if not worker.hybrid:  # whose other table, of which it has some rows, MXNet alone takes for all
        net.weight.weight.set_data(mx.nd.sparse.row_sparse_array((held, np.arange(ROWS)), shape=held.shape))
    evaluate()
    result.update({'later-' + name: values for name, values in fit(worker, net, trainer, steps=3, seed=7).items()})
    if worker.rank == 0:
        report(0, evaluated={'%d' % index: values for index, values in enumerate(outputs)})
    return result


def renewed(worker):
    """New Trainers on the same net, new nets, and garbage of the old ones."""
    net, trainer = make(worker, False)
    gone = []
    for seed in (5, 6, 7):
        fit(worker, net, trainer, steps=5, seed=seed)
        gone.append(weakref.ref(trainer))
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.2}, kvstore=worker.store())
        make(worker)
        gc.collect()
    return fit(worker, net, trainer, steps=3, seed=8)


def mute(worker):
    """Train without standard streams, as in a service."""
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None), mock.patch('sys.stdin', None):
        net, trainer = make(worker)
        return fit(worker, net, trainer, steps=STEPS)


def elsewhere(worker, net, trainer):
    """The working directory changes, and goes."""
    fit(worker, net, trainer, steps=2)
    home = os.getcwd()
    directory = tempfile.mkdtemp()
    os.chdir(directory)
    os.rmdir(directory)
    try:
        return fit(worker, net, trainer, steps=5, seed=6)
    finally:
        os.chdir(home)


def with_net(case):
    """Return a function of a worker that gives a case a filled model and its Trainer, too."""
    return lambda worker: case(worker, *make(worker))


CASES = {name: with_net(around(act, every)) for name, act, every in (
    ('forks', forks, 1), ('programs', programs, 1), ('pictures', pictures, 4), ('child-computes', child_computes, 3),
    ('child-exits', child_exits, 3), ('child-raises', child_raises, 3), ('child-calls-store', child_calls_store, 3))}
CASES.update({case.__name__.replace('_', '-'): with_net(case) for case in (
    pools, loaders, spawned, in_threads, beside_threads, signals, caught, evaluates, elsewhere)})
CASES.update({'mid-step': mid_step, 'in-event-loop': in_event_loop, 'cells': cells, 'renewed': renewed, 'mute': mute})


# -- the end -------------------------------------------------------------------------------------------------------


def end(worker, how):
    """Train, report, and leave the script in one of many ways."""
    net, trainer = make(worker)
    result = fit(worker, net, trainer, steps=STEPS)
    report(worker.rank, **{how: result})
    if how == 'exit':
        # Behind a call, a `with` and a running child; handlers of the script's run before and after the store's.
        subprocess.Popen(['sleep', '2'])
        atexit.register(lambda: report(worker.rank, late=weights(net)))
        with autograd.record():
            (lambda: sys.exit(0))()
    elif how == 'status':
        raise SystemExit(3)
    elif how == 'thread':
        # A thread goes on, and trains, when the main one has ended.
        main = threading.main_thread()
        threading.Thread(target=lambda: (main.join(LIMIT_S), report(worker.rank, late=fit(
            worker, net, trainer, steps=2, seed=6)))).start()
    elif how == 'child':
        # It has no time to end before its parent does.
        pid = os.fork()
        if not pid:
            time.sleep(1)
            sys.exit(0)


def main():
    parser = parser_of(CASES)
    parser.add_argument('--in-thread', action='store_true')
    parser.add_argument('--end')
    arguments = parser.parse_args()
    if arguments.end:
        atexit.register(lambda: report(int(os.environ.get('HOROVOD_RANK', os.environ.get('DMLC_TASK_ID', 0))),
                                       last='here'))
        end(Worker(arguments.kvstore), arguments.end)
        return
    run = in_a_thread if arguments.in_thread else lambda function, *args: function(*args)
    worker = run(Worker, arguments.kvstore)
    for name in arguments.cases:
        began = time.monotonic()
        report(worker.rank, **{name: run(CASES[name], worker)})
        print('case %s: %.1f s' % (name, time.monotonic() - began), flush=True)
    report(worker.rank, seen=(worker.rank, worker.size))


if __name__ == '__main__':
    main()
