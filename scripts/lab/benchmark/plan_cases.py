"""Networks that are trained by several plans, to test the predictions of the planner."""
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from mxhybrid import parallel
from mxhybrid.base.settings import TablePlan
from mxhybrid.parallel.plans.store_plan import StorePlan

from .layers_training import convolutions_and_dense
from .transformers import Gpt


class PlanCase(NamedTuple):
    """A network, shapes of a sample of each input, which are of float32, and plans by name for a number of ranks."""

    make: Callable[[], Any]
    #: Samples of a rank.
    batch: int
    shapes: Tuple[Tuple[int, ...], ...]
    plans: Callable[[int], Dict[str, Any]]


def _convolutions(normalized: bool) -> Any:
    """Convolutions that take most of the computing, with or without BatchNorm, and dense layers with most weights."""
    net = nn.HybridSequential(prefix='net_')

    def add_convolution(channels: int, inputs: int, pools: bool) -> None:
        net.add(nn.Conv2D(channels, 3, padding=1, in_channels=inputs))
        if normalized:
            net.add(nn.BatchNorm(in_channels=channels))
        net.add(nn.Activation('relu'), *[nn.MaxPool2D(2, 2)] * pools)
    with net.name_scope():
        add_convolution(16, 3, False)
        add_convolution(32, 16, True)
        add_convolution(32, 32, True)
        net.add(nn.Flatten(), nn.Dense(1024, in_units=4608, activation='relu'),
                nn.Dense(1024, in_units=1024, activation='relu'), nn.Dense(50, in_units=1024))
    return net


class _LanguageModel(gluon.HybridBlock):
    """Words in, words out: a recurrent layer, and a dense softmax over all words with its loss."""

    def __init__(self, words: int = 8000, width: int = 128):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.embedding = nn.Embedding(words, width)
            self.recurrent = gluon.rnn.LSTM(width, layout='NTC', input_size=width)
            self.words = nn.Dense(words, flatten=False, in_units=width)
            self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F: Any, words: Any, labels: Any) -> Any:
        return self.loss(self.words(self.recurrent(self.embedding(words))), labels)


class _Recommender(gluon.HybridBlock):
    """Users and items in a table on the servers, then dense layers, which rate each pair."""

    def __init__(self, rows: int = 20000, width: int = 64):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.rows = nn.Embedding(rows, width, sparse_grad=True)
            self.layers = nn.HybridSequential()
            with self.layers.name_scope():
                self.layers.add(nn.Dense(1024, in_units=2 * width, activation='relu'),
                                nn.Dense(1024, in_units=1024, activation='relu'), nn.Dense(1, in_units=1024))

    def hybrid_forward(self, F: Any, pairs: Any) -> Any:
        return self.layers(F.reshape(self.rows(pairs), shape=(0, -1)))


def _common(ranks: int) -> Dict[str, Any]:
    plans = {'data': parallel.data_parallel(), 'trick': parallel.one_weird_trick()}
    for model in range(2, ranks + 1):
        if ranks % model == 0:
            plans['model %d' % model] = parallel.grid(model=model, batch=ranks // model)
    return plans


def _images(ranks: int) -> Dict[str, Any]:
    plans = _common(ranks)
    for domain in range(2, ranks + 1):
        if ranks % domain == 0:
            plans['height %d' % domain] = parallel.grid(domain=(domain,), batch=ranks // domain)
    return plans


def _placed(ranks: int) -> Dict[str, Any]:
    """Return plans as for images, and one with everything on one rank, for which the others wait."""
    return dict(_images(ranks), alone=parallel.by_name({'*': {'ranks': [0], 'samples': 1}}))


def _recurrent(ranks: int) -> Dict[str, Any]:
    plans = _common(ranks)
    plans['vocabulary'] = parallel.by_name({'*dense*': {'channels': ranks}, '*log_softmax*': {'channels': ranks},
                                           '*pick*': {'partials': ranks}})
    plans['placed'] = parallel.by_name({'*lstm*': {'ranks': [0], 'samples': 1}})
    return plans


def _attention(ranks: int) -> Dict[str, Any]:
    """Return some plans of a Transformer, of which one has all on one rank."""
    plans = {'data': parallel.data_parallel(), 'trick': parallel.one_weird_trick(),
             'megatron': parallel.megatron(ranks),
             'alone': parallel.by_name({'*': {'ranks': [0], 'samples': 1}}),
             'vocabulary': parallel.by_name({'dense0_fwd': {'channels': ranks}, '*log_softmax*': {'channels': ranks},
                                            '*pick*': {'partials': ranks}, 'embedding0_fwd': {'partials': ranks}})}
    if ranks % 2 == 0:
        plans['megatron 2'] = parallel.megatron(2, ranks // 2)
        plans['pipeline 2'] = parallel.pipeline(2, 8, inside=parallel.megatron(ranks // 2))
    plans['pipeline'] = parallel.pipeline(ranks, 8, 'eager-1f1b')
    return plans


def _dense(ranks: int) -> Dict[str, Any]:
    plans = _common(ranks)
    plans['in and out'] = parallel.by_name({'*dense0*': {'channels': ranks}, '*dense1_fwd': {'partials': ranks}})
    # If a plan does not mention a table, the store measures both routes in the first steps.
    table = StorePlan({'embedding0_weight': TablePlan('servers')})
    return {name: plan.with_store(table) for name, plan in plans.items()}


PLAN_CASES: Dict[str, PlanCase] = {
    'alexnet': PlanCase(lambda: convolutions_and_dense(1024, 1024, 100), 8, ((3, 64, 64),), _images),
    'resnet18': PlanCase(lambda: vision.resnet18_v1(classes=100, prefix='net_'), 4, ((3, 64, 64),), _images),
    'language': PlanCase(_LanguageModel, 4, ((20,), (20,)), _recurrent),
    'convolutions': PlanCase(lambda: _convolutions(False), 8, ((3, 48, 48),), _placed),
    'normalized': PlanCase(lambda: _convolutions(True), 8, ((3, 48, 48),), _placed),
    'gpt': PlanCase(Gpt, 4, ((128,), (128,)), _attention),
    'recommender': PlanCase(_Recommender, 64, ((2,),), _dense),
}


def shapes_of(case: PlanCase, ranks: int) -> List[Tuple[int, ...]]:
    """Return the shape of each input, for the joint batch."""
    return [(case.batch * ranks,) + shape for shape in case.shapes]
