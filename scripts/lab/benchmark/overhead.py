"""Measures the cost of the store in a single process: the training step of examples/word_lm.py with the store and
by MXNet's own means.

Two equal models in one process take turns, a block of steps each, so that both meet the same moments of the machine;
which one goes first alternates.  Words are random: times do not depend on them.
"""
import argparse
import random
import statistics
import sys
import time
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from lab.launchers import SCRIPTS

from .training import EXAMPLES

VOCAB, WIDTH, COLUMNS, WORDS, SAMPLES = 20000, 128, 64, 35, 512

#: Blocks of each store in a round; the first blocks do not count.
BLOCKS, WARMUP = 10, 2

#: The kind of embeddings, and the alternatives to this project's store with which their model is trained.
PAIRS = (('row_sparse weights', 'local'), ('dense weights, row_sparse gradients', None))

_RESAMPLES = 2000


def _dense_embedding(*args: Any, **keywords: Any) -> Any:
    return gluon.nn.Embedding(*args, sparse_grad=True, **keywords)


class _Training:
    """A model and its Trainer."""

    def __init__(self, weights: str, kvstore: Any):
        from word_lm import WordLM

        mx.random.seed(1)
        embedding = gluon.contrib.nn.SparseEmbedding if weights == PAIRS[0][0] else _dense_embedding
        self._model = WordLM(embedding, VOCAB, WIDTH, WIDTH, 1, 0.0)
        self._model.initialize(mx.init.Uniform(0.05))
        self._trainer = gluon.Trainer(self._model.collect_params(), 'adagrad', {'learning_rate': 0.05},
                                      kvstore=kvstore)

    def block(self, batches: List[Any]) -> float:
        """Train on batches; returns seconds."""
        state = self._model.lstm.begin_state(batch_size=COLUMNS)
        mx.nd.waitall()
        started = time.perf_counter()
        for words, labels, candidates, counts in batches:
            with autograd.record():
                hidden, _ = self._model(nd.array(words, dtype='int32'), state)
                loss = self._model.softmax(hidden, nd.array(labels, dtype='int32'),
                                           nd.array(candidates, dtype='int32'), *counts).sum() / labels.size
            loss.backward()
            self._trainer.step(1)
        mx.nd.waitall()
        return time.perf_counter() - started


def _batches(count: int) -> List[Any]:
    from word_lm import LogUniformSampler

    sampler, chance = LogUniformSampler(VOCAB, SAMPLES, 1), np.random.RandomState(1)
    batches = []
    for _ in range(count):
        # As frequencies of words do, chances fall with the rank.
        text = np.minimum(np.exp(chance.rand(WORDS + 1, COLUMNS) * np.log(VOCAB)).astype(np.int64), VOCAB) - 1
        labels = text[1:].reshape(-1)
        candidates, tries = sampler.draw()
        batches.append((text[:-1], labels, candidates,
                        [nd.array(sampler.log_expected_count(ids, tries)) for ids in (labels, candidates)]))
    return batches


def compare(weights: str, other: Any, steps: int, blocks: int) -> Dict[str, Any]:
    """Return the median seconds of a step with the store (`hybrid_s`) and without (`other_s`), the median `ratio` of
    the blocks that followed each other, and `low` and `high`, between which it lies with 95 % (bootstrap).
    """
    batches = _batches(steps)
    both = [_Training(weights, 'hybrid'), _Training(weights, other)]
    times: List[Tuple[float, float]] = []
    for number in range(WARMUP + blocks):
        taken = {which: both[which].block(batches) for which in ((0, 1) if number % 2 else (1, 0))}
        times.append((taken[0] / steps, taken[1] / steps))
    times = times[WARMUP:]
    ratios = [ours / others for ours, others in times]
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=blocks)) for _ in range(_RESAMPLES))
    return {'weights': weights, 'other': other, 'hybrid_s': statistics.median(ours for ours, _ in times),
            'other_s': statistics.median(others for _, others in times), 'ratio': statistics.median(ratios),
            'low': medians[_RESAMPLES // 40], 'high': medians[-_RESAMPLES // 40]}


def run(args: argparse.Namespace) -> List[Dict[str, Any]]:
    """Compare both kinds of weights, and print the comparison; `args.steps` is the number of steps of a block."""
    sys.path[:0] = [str(SCRIPTS.parent), str(EXAMPLES)]
    import mxhybrid  # noqa: F401 (makes kvstore='hybrid' known)

    print('one process, %d blocks of %d steps of word_lm with each store in turn' % (BLOCKS * args.rounds, args.steps))
    comparisons = []
    for weights, other in PAIRS:
        comparison = compare(weights, other, args.steps, BLOCKS * args.rounds)
        comparisons.append(comparison)
        print('%(weights)s: hybrid' % comparison + ' %.2f ms, kvstore=%r %.2f ms a step: %.3f x (%.3f to %.3f)' % (
            1e3 * comparison['hybrid_s'], other, 1e3 * comparison['other_s'], comparison['ratio'], comparison['low'],
            comparison['high']), flush=True)
    return comparisons
