"""Draw the timeline of a step of a pipeline as it ran, and print its efficiency.

``python -m lab.pipeline_timeline FILE.svg`` in ``scripts/`` starts a job of four workers on this host.  Each stage has
a layer that sleeps in place of computing, so that stages do not share processors: the figure is the efficiency of the
schedule and of the transfers, and hardly depends on other programs.
"""
import argparse
import os
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional

STAGES, MICRO_BATCHES, STEPS = 4, 8, 4
FORWARD_S, BACKWARD_S = 0.03, 0.06
_WIDTH, _ROW, _LEFT = 860, 34, 70


class Span(NamedTuple):
    """A pass of a micro-batch through a stage, with times in seconds."""

    stage: int
    is_forward: bool
    micro_batch: int
    begin: float
    end: float


def efficiency(spans: List[Span]) -> float:
    """Return the part of the time of a step in which a stage computes."""
    step_s = max(span.end for span in spans) - min(span.begin for span in spans)
    return sum(span.end - span.begin for span in spans) / step_s / len({span.stage for span in spans})


def drawing(spans: List[Span]) -> str:
    """Return an SVG image with a row for each stage and a box for each pass."""
    first, last = min(span.begin for span in spans), max(span.end for span in spans)
    stages = max(span.stage for span in spans) + 1
    scale = _WIDTH / (last - first)
    height = stages * _ROW + 40
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">'
             % (_LEFT + _WIDTH + 10, height),
             '<rect width="100%" height="100%" fill="white"/>']
    for stage in range(stages):
        lines.append('<text x="8" y="%d">stage %d</text>' % (stage * _ROW + 28, stage))
    for span in spans:
        left, width = _LEFT + (span.begin - first) * scale, (span.end - span.begin) * scale
        top = span.stage * _ROW + 10
        lines.append('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="white"/>'
                     % (left, top, width, _ROW - 6, '#9ecae1' if span.is_forward else '#fdae6b'))
        lines.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>'
                     % (left + width / 2, top + 19, span.micro_batch))
    lines.append('<text x="%d" y="%d">forward passes blue, backward passes orange, with the number of the micro-batch; '
                 '%.0f ms</text>' % (_LEFT, height - 8, 1000 * (last - first)))
    return '\n'.join(lines + ['</svg>', ''])


def spans_of(recorded: Dict[int, List[Any]]) -> List[Span]:
    """Return the passes of the last step, from the records of the workers."""
    spans = []
    for stage, entries in recorded.items():
        for is_forward in (True, False):
            times = [(begin, end) for kind, begin, end in entries if kind == is_forward][-MICRO_BATCHES:]
            spans += [Span(stage, is_forward, micro_batch, begin, end)
                      for micro_batch, (begin, end) in enumerate(times)]
    return spans


def _train() -> None:
    """Train as a worker of the job; report when the layer of this worker's stage has slept."""
    import mxnet as mx
    from mxnet import autograd, gluon
    from mxnet.gluon import nn

    import mxhybrid
    from lab.reports import report
    recorded: List[Any] = []

    class Sleep(mx.operator.CustomOp):
        def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self._sleep(True, FORWARD_S)
            self.assign(out_data[0], req[0], mx.nd.zeros(out_data[0].shape))

        def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
            self._sleep(False, BACKWARD_S)
            self.assign(in_grad[0], req[0], mx.nd.zeros(in_grad[0].shape))

        @staticmethod
        def _sleep(is_forward: bool, seconds: float) -> None:
            begin = time.monotonic()
            time.sleep(seconds)
            recorded.append((is_forward, begin, time.monotonic()))

    @mx.operator.register('sleeping_layer')
    class _Properties(mx.operator.CustomOpProp):
        def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Sleep:
            return Sleep()

    class Network(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__(prefix='net_')
            with self.name_scope():
                self.layers = [nn.Dense(64, in_units=64, prefix='stage%d_' % stage) for stage in range(STAGES)]
                for layer in self.layers:
                    self.register_child(layer)

        def hybrid_forward(self, F: Any, data: Any) -> Any:
            for stage, layer in enumerate(self.layers):
                data = layer(data)
                # The row of one sample goes through the sleeping layer, which returns zeros.
                sample_row = F.slice_axis(data, axis=0, begin=0, end=1, name='net_stage%d_slice' % stage)
                slept = F.Custom(sample_row, op_type='sleeping_layer', name='net_stage%d_sleep' % stage)
                data = F.broadcast_add(data, slept, name='net_stage%d_sum' % stage)
            return F.mean(data, axis=1, name='net_stage%d_mean' % (STAGES - 1))

    store = mxhybrid.create()
    net = Network()
    net.initialize()
    batch = 4 * MICRO_BATCHES
    net = mxhybrid.parallelize(net, mxhybrid.parallel.pipeline(['stage%d*' % stage for stage in range(STAGES)],
                                                               MICRO_BATCHES), (batch, 64))
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    for _ in range(STEPS):
        with autograd.record():
            loss = net(mx.nd.ones((batch, 64))[net.samples])
        loss.backward()
        trainer.step(batch)
        mx.nd.waitall()
    report(store.rank, recorded=recorded)


def main(arguments: Optional[List[str]] = None) -> None:
    """Start the job, write the image, and print the efficiency."""
    from lab.jobs import run_job
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('file', help='the image to write')
    options = parser.parse_args(arguments)
    result = run_job(os.path.abspath(__file__), 'horovodrun', workers=STAGES, timeout=120).ok()
    spans = spans_of({rank: values['recorded'] for rank, values in result.results.items()})
    with open(options.file, 'w', encoding='utf-8') as file:
        file.write(drawing(spans))
    ideal = MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1)
    sys.stdout.write('efficiency %.3f, %.3f of the ideal %.3f\n'
                     % (efficiency(spans), efficiency(spans) / ideal, ideal))


if __name__ == '__main__':
    if 'HOROVOD_RANK' in os.environ:
        _train()
    else:
        main()
