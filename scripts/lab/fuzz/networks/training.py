"""The pieces of a script that train a network, split or in one process: steps, and events between and in them.

An event happens in a step: ``before`` the forward pass, ``between`` the passes, or ``after`` the backward pass.  The
calls of the network that an event makes have its number, counted from 10 on, or from `EVALUATION` on.
"""
import os
import tempfile

import mxnet as mx
import numpy as np
from mxnet import autograd

import mxhybrid

from .pieces import EVALUATION, as_list, batch_of, place_of, plan_of, prepared, report, trainer_of, weights_of, within


class Training:
    """A network in training; `record` has its outputs, gradients of inputs, and weights.

    `rank` is None in one process, where `drawn` has the random values of the split network, and its refusals.
    """

    #: Events that mxhybrid may refuse, on all workers: training goes on without them, also in one process.
    refusable = ('initialize', 'cast', 'reset_ctx', 'dict', 'states')
    #: Networks that live until the process exits.
    alive = []

    def __init__(self, make, spec, directory, rank=None, note=lambda words: None, drawn=None):
        self.make, self.spec, self.directory, self.rank, self.note = make, spec, directory, rank, note
        self.drawn = drawn or {}
        self.record, self.saved, self.backward = {}, set(), ()
        self.note('parallelize')
        self.make_net(None if rank is None else plan_of(spec['plan']))

    def make_net(self, plan):
        """Make the network, split by a plan, and a Trainer."""
        spec = self.spec
        self.net = prepared(self.make, spec)
        if self.rank is not None:
            inputs = spec['inputs']
            self.net = mxhybrid.parallelize(
                self.net, plan, data=[tuple(each['shape']) for each in inputs], input_grad=spec['input_grad'],
                batch_axis=[each['axis'] for each in inputs], dtype=[each['dtype'] for each in inputs])
        self.make_trainer()

    def make_trainer(self):
        """Make a Trainer."""
        how = {'kvstore': None} if self.rank is None else {
            'kvstore': 'hybrid', 'update_on_kvstore': self.spec['on_store']}
        self.trainer = trainer_of(self.net, self.spec, **how)

    def file(self, name):
        """Return the path of a file."""
        return os.path.join(self.directory, name if self.rank is not None else 'whole.' + name)

    def call(self, step, call):
        """Call the network; return inputs, the places of outputs, and outputs."""
        samples, taken = self.net.samples if self.rank is not None else slice(None), []
        for each, values in zip(self.spec['inputs'], batch_of(self.spec, step, call)):
            part = Ellipsis if each['axis'] is None else (slice(None),) * each['axis'] + (samples,)
            taken.append(mx.nd.array(values[part], dtype=values.dtype))
            if autograd.is_recording() and self.spec['input_grad']:
                taken[-1].attach_grad()
        more = [mx.nd.array(self.drawn['%d output %d/%d' % (step, call, number)], dtype=self.spec['dtype'])
                for number, head in enumerate(self.spec['heads']) if head['drawn'] and self.drawn]
        outputs = as_list(self.net(*taken, *more))
        boxes = [[-1] if self.rank is None else place_of(output.shape, head, samples, self.spec['samples'])
                 for output, head in zip(outputs, self.spec['heads'])]
        return taken, boxes, outputs

    def look(self, step, call, taken, boxes, outputs):
        """Record the outputs of a call, and the gradients of its inputs."""
        for number, (box, output) in enumerate(zip(boxes, outputs)):
            self.record['%d output %d/%d' % (step, call, number)] = output.asnumpy()
            self.record['box of %d output %d/%d' % (step, call, number)] = np.array(box)
        for number, (each, array) in enumerate(zip(self.spec['inputs'], taken)):
            if self.spec['input_grad'] and array.grad is not None and each['values'] != 'ids':
                self.record['%d gradient of data%d/%d' % (step, number, call)] = array.grad.asnumpy()

    def gradients(self, step, calls):
        """Return the outputs of calls that have gradients, and these gradients."""
        heads, gradients = [], []
        for _, boxes, outputs in calls:
            for number, (box, output, head) in enumerate(zip(boxes, outputs, self.spec['heads'])):
                if output.dtype.__name__.startswith('float'):
                    weights = weights_of(tuple(head['shape']), step, number) * (not head['drawn'])
                    heads.append(output)
                    gradients.append(mx.nd.array(weights[within(box)], dtype=output.dtype).reshape(output.shape))
        return heads, gradients

    def run(self):
        """Train, and evaluate; return the record."""
        steps = self.spec['steps']
        for step in range(steps):
            self.note('step %d' % step)
            self.happen(step, 'before')
            with autograd.record():
                calls = [self.call(step, number) for number in range(self.spec['calls'])]
            self.backward = self.gradients(step, calls)
            self.happen(step, 'between')
            autograd.backward(*self.backward)
            for number, call in enumerate(calls):
                self.look(step, number, *call)
            self.happen(step, 'after')
            if self.trainer is not None:
                self.trainer.step(1)
                params = self.net.collect_params()
                if any(param.grad_req == 'add' for param in params.values()):
                    params.zero_grad()
                self.net.save_parameters(self.file('weights'))
                if not self.rank:
                    for name, value in mx.nd.load(self.file('weights')).items():
                        self.record['%d weight %s' % (step, name)] = value.asnumpy()
        self.note('evaluation')
        self.look(steps, EVALUATION, *self.call(steps, EVALUATION))
        return self.record

    # -- events ----------------------------------------------------------------------------------------------------

    def happen(self, step, moment):
        """Let the events of a moment in a step happen, except those that the split network has refused."""
        for number, event in enumerate(self.spec['events']):
            name = '%d refused %d' % (step, number)
            if [event['step'], event['place']] != [step, moment] or name in self.drawn:
                continue
            self.note('step %d, %s' % (step, event['do']))
            try:
                self.do(event, step, number + 10)
            except (mxhybrid.InputError, mxhybrid.SettingError) as error:
                if not {event['do'], event.get('what')} & set(self.refusable):
                    raise RuntimeError('%s was refused: %s' % (event, error)) from error
                self.record[name] = np.array(str(error))

    def do(self, event, step, call):
        """Let an event happen; its calls of the network have the number `call`."""
        do, params = event['do'], self.net.collect_params()
        named = [params[name] for name in event.get('params', ())]
        if do == 'initialize':
            for block in named or [self.net]:
                block.initialize(init=mx.init.Constant(event['value']), force_reinit=True)
        elif do == 'set_data':
            for param in named:
                param.set_data(mx.nd.full(param.shape, event['value'], dtype=param.dtype))
        elif do == 'grad_req':
            for request in event['requests']:
                for param in named:
                    param.grad_req = request
                if not named:
                    params.setattr('grad_req', request)
        elif do == 'zero_grad':
            params.zero_grad()
        elif do == 'reset_ctx':
            params.reset_ctx(mx.cpu())
        elif do == 'backward':
            with autograd.record():
                called = self.call(step, call)
            autograd.backward(*self.gradients(step, [called]))
            self.look(step, call, *called)
        elif do == 'retain':
            heads, gradients = self.backward
            autograd.backward(heads, [gradient * -0.5 for gradient in gradients], retain_graph=True)
        elif do == 'abandon':
            try:
                with autograd.record():
                    called = self.call(step, call)
                    raise KeyError('an error of the script')
            except KeyError:
                self.look(step, call, *called)
        elif do == 'evaluate':
            self.look(step, call + EVALUATION, *self.call(step, call + EVALUATION))
        elif do == 'cast':
            if self.rank is not None or event['dtype'] == self.spec['dtype']:
                self.net.cast(event['dtype'])
        elif do == 'trainer':
            self.make_trainer()
        elif do == 'again':
            self.make_again(event['forgets'])
        elif do == 'file':
            self.use_file(event['what'], event['loads'], step)
        elif self.rank is not None:
            self.do_split(event)

    def do_split(self, event):
        """Let an event happen that changes nothing: the split network ignores or refuses it."""
        if event['do'] == 'hybridize':
            self.net.hybridize(static_alloc=True)
        else:  # inputs of other shapes
            try:
                with autograd.record(event['records']):
                    self.net(*[mx.nd.zeros((7, *shape), dtype=dtype) for shape, dtype in self.net.local_inputs])
            except mxhybrid.InputError:
                return
            raise RuntimeError('inputs of other shapes were taken')

    def make_again(self, forgets):
        """Go on with a second network, by the plan that the first one saves."""
        weights, plan = self.file('again'), self.file('plan.%s.json' % self.rank)
        self.net.save_parameters(weights)
        if self.rank is not None:
            self.net.save_plan(plan)
            if forgets:
                self.net.release()
        self.make_net(plan)
        self.net.load_parameters(weights)

    def use_file(self, what, loads, step):
        """Save, or load what was saved last; in one process, a checkpoint is two files."""
        path, has_states = self.file(what), what in ('states', 'checkpoint')
        states, is_checkpoint = '%s.states.%s' % (path, self.rank), what == 'checkpoint' and self.rank is not None
        if not loads or what not in self.saved:
            if is_checkpoint:
                mxhybrid.checkpoint.save(path, self.net, self.trainer, step)
            elif what != 'states':
                self.net.save_parameters(path)
            if has_states and not is_checkpoint:
                self.trainer.save_states(states)
            self.saved.add(what)
        if loads:
            if is_checkpoint:
                mxhybrid.checkpoint.load(path, self.net, self.trainer)
            elif what == 'dict':
                self.net.load_dict(mx.nd.load(path))
            elif what != 'states':
                self.net.load_parameters(path)
            if has_states and not is_checkpoint:
                self.trainer.load_states(states)


def run_split(rank, make, spec, directory, note):
    """Train the network split over all workers; return the results of this worker, by name."""
    training = Training(make, spec, directory, rank, note)
    record = training.run()
    if spec['end'] == 'release':
        training.net.release()
    if spec['end'] == 'keep':
        Training.alive.append(training.net)
    return record


def run_whole(make, spec, drawn, directory):
    """Train the network in one process; `drawn` has the random values of the split network."""
    return Training(make, spec, directory, drawn=drawn).run()


def main(make, spec, tolerance):
    """Compare the network in this job with one process, and print the differences."""
    store = mxhybrid.create()
    directory = store.backend.allgather_json(tempfile.mkdtemp(), 'directory')[0]
    record = run_split(store.rank, make, spec, directory, lambda words: None)
    np.savez(os.path.join(directory, 'record.%d.npz' % store.rank), **record)
    store._barrier()
    if store.rank == 0:
        report(directory, store.num_workers, spec, tolerance, lambda drawn: run_whole(make, spec, drawn, directory))
    store._barrier()
