"""The pieces of a script that train a network, split or in one process: steps, and what scripts do between and in them.

An event happens in a step: ``before`` the forward pass, ``between`` the passes, or ``after`` the backward pass.  The
calls of the network that an event makes have its number, counted from 10 on, or from `EVALUATION` on.
"""
import os
import sys
import tempfile

import mxnet as mx
import numpy as np
from mxnet import autograd

import mxhybrid

from .pieces import (
    EVALUATION,
    TOLERANCE,
    as_list,
    batch_of,
    differences,
    joined,
    masks_problems,
    place_of,
    plan_of,
    prepared,
    trainer_of,
    weights_of,
    within,
)


class Training:
    """A network in training; `record` has its outputs, gradients of inputs, and weights.

    `rank` is None in one process, where `drawn` has the random values of the split network, and its refusals.
    """

    #: Events that mxhybrid may refuse, on all workers: training goes on without them, also in one process.
    refusable = ('initialize', 'cast', 'reset_ctx', 'dict', 'states', 'retain')
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
            own = values if each['axis'] is None else values[(slice(None),) * each['axis'] + (samples,)]
            taken.append(mx.nd.array(own, dtype=values.dtype))
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
            for number, (box, output) in enumerate(zip(boxes, outputs)):
                head = self.spec['heads'][number]
                weights = weights_of(tuple(head['shape']), step, number) * (not head['drawn'])
                if output.dtype.__name__.startswith('float'):
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

    def happen(self, step, place):
        """Let the events of a place in a step happen."""
        for number, event in enumerate(self.spec['events']):
            name = '%d refused %d' % (step, number)
            if [event['step'], event['place']] != [step, place] or name in self.drawn:
                continue
            self.note('step %d, %s' % (step, event['do']))
            try:
                getattr(self, 'on_' + event['do'])(event, step, number + 10)
            except (mxhybrid.InputError, mxhybrid.SettingError) as error:
                if not {event['do'], event.get('what')} & set(self.refusable):
                    raise RuntimeError('%s was refused: %s' % (event, error)) from error
                self.record[name] = np.array(str(error))

    def params(self, event):
        """Return the parameters that an event names."""
        return [self.net.collect_params()[name] for name in event['params']]

    def on_initialize(self, event, step, call):
        """Initialize parameters again, those that are named or all."""
        for block in self.params(event) if event['params'] else [self.net]:
            block.initialize(init=mx.init.Constant(event['value']), force_reinit=True)

    def on_set_data(self, event, step, call):
        """Set values."""
        for param in self.params(event):
            param.set_data(mx.nd.full(param.shape, event['value'], dtype=param.dtype))

    def on_grad_req(self, event, step, call):
        """Set the requests of gradients, one after the other, of parameters that are named or of all."""
        for request in event['requests']:
            for param in self.params(event):
                param.grad_req = request
            if not event['params']:
                self.net.collect_params().setattr('grad_req', request)

    def on_zero_grad(self, event, step, call):
        """Set gradients to zero."""
        self.net.collect_params().zero_grad()

    def on_backward(self, event, step, call):
        """Make a call and its backward pass, besides those of the step."""
        with autograd.record():
            called = self.call(step, call)
        autograd.backward(*self.gradients(step, [called]))
        self.look(step, call, *called)

    def on_retain(self, event, step, call):
        """Make a backward pass of the calls of the step before the usual one."""
        heads, gradients = self.backward
        autograd.backward(heads, [gradient * -0.5 for gradient in gradients], retain_graph=True)

    def on_abandon(self, event, step, call):
        """Make a recorded call without a backward pass, since the script raises an error."""
        try:
            with autograd.record():
                called = self.call(step, call)
                raise KeyError(step)
        except KeyError:
            self.look(step, call, *called)

    def on_misfit(self, event, step, call):
        """Call the split network with inputs that have another shape, which it refuses."""
        if self.rank is not None:
            try:
                with autograd.record(event['records']):
                    self.net(*[mx.nd.zeros((7, *shape), dtype=dtype) for shape, dtype in self.net.local_inputs])
            except mxhybrid.InputError:
                return
            raise RuntimeError('inputs of other shapes were taken')

    def on_evaluate(self, event, step, call):
        """Make a call that is not recorded."""
        self.look(step, call - 10 + EVALUATION + 1, *self.call(step, call - 10 + EVALUATION + 1))

    def on_cast(self, event, step, call):
        """Cast the split network, which refuses another type."""
        if self.rank is not None:
            self.net.cast(event['dtype'])

    def on_reset_ctx(self, event, step, call):
        """Move all parameters to where they are."""
        self.net.collect_params().reset_ctx(mx.cpu())

    def on_trainer(self, event, step, call):
        """Make a new Trainer, without momentum."""
        self.make_trainer()

    def on_hybridize(self, event, step, call):
        """Hybridize the split network."""
        if self.rank is not None:
            self.net.hybridize(static_alloc=True)

    def on_again(self, event, step, call):
        """Go on with a second network, by the plan that the first one saves."""
        weights, plan = self.file('again'), self.file('plan.%s.json' % self.rank)
        self.net.save_parameters(weights)
        if self.rank is not None:
            self.net.save_plan(plan)
        if self.rank is not None and event['forgets']:
            self.net.forget()
        self.make_net(plan)
        self.net.load_parameters(weights)

    def on_file(self, event, step, call):
        """Save, or load what was saved last."""
        what = event['what']
        if not event['loads'] or what not in self.saved:
            getattr(self, 'save_' + what)(self.file('%s' % what), step)
            self.saved.add(what)
        if event['loads']:
            getattr(self, 'load_' + what)(self.file('%s' % what))

    def save_parameters(self, path, step):
        """Save weights."""
        self.net.save_parameters(path)

    def load_parameters(self, path):
        """Load weights."""
        self.net.load_parameters(path)

    save_dict = save_parameters

    def load_dict(self, path):
        """Load weights that are in memory."""
        self.net.load_dict(mx.nd.load(path))

    def save_states(self, path, step):
        """Save the state of the optimizer."""
        self.trainer.save_states('%s.%s' % (path, self.rank))

    def load_states(self, path):
        """Load the state of the optimizer."""
        self.trainer.load_states('%s.%s' % (path, self.rank))

    def save_checkpoint(self, path, step):
        """Save weights and state."""
        if self.rank is None:
            self.save_parameters(path, step)
            self.save_states(path, step)
        else:
            mxhybrid.checkpoint.save(path, self.net, self.trainer, step)

    def load_checkpoint(self, path):
        """Load weights and state."""
        if self.rank is None:
            self.load_parameters(path)
            self.load_states(path)
        else:
            mxhybrid.checkpoint.load(path, self.net, self.trainer)


def run_split(rank, make, spec, directory, note):
    """Train the network split over all workers; return the results of this worker, by name."""
    training = Training(make, spec, directory, rank, note)
    record = training.run()
    if spec['end'] == 'forget':
        training.net.forget()
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
        records = []
        for rank in range(store.num_workers):
            with np.load(os.path.join(directory, 'record.%d.npz' % rank)) as file:
                records.append(dict(file))
        values, problems = joined(records, spec, tolerance if tolerance > TOLERANCE else 1e-12)
        problems += masks_problems(values, spec)
        problems += differences(values, run_whole(make, spec, values, directory), tolerance=tolerance)
        print('\n'.join('step %d: %s' % problem for problem in problems) or 'no difference')
        sys.stdout.flush()
    store._barrier()
