"""Find how to split a network over a cluster, by simulating training steps.

MODEL is a function without arguments that makes the network, a HybridBlock: train.py:make_net, or module:make_net.  The
cluster file is what mxhybrid calibrate has measured, or was written by hand:

  mxhybrid plan train.py:make_net --inputs data=64,3,224,224 --cluster cluster.json --export plan.json
  mxhybrid plan train.py:make_net --inputs data=64,3,224,224 --cluster cluster.json --import plan.json --evaluate-only
  mxhybrid plan train.py:make_net --inputs data=64,3,224,224 --cluster cluster.json --compare a.json b.json
  mxhybrid plan train.py:make_net --inputs data=2048,3,224,224 --formula 8,64,512

The first time operators are timed on this machine, which may take minutes; the times are kept.  In training,
mxhybrid.parallelize takes the file that --export writes.
"""
import argparse
import math
import signal
import sys
from typing import Any, Dict, List

from ..base.errors import HybridError, InputError
from ..base.figures import check_figure
from ..base.files import cannot_write
from ..base.text import aligned, seconds_text, size_text
from . import console

#: Of a formula, for which all grids are looked at.
_MOST_RANKS = 1 << 16

#: What does not search, and what it leaves aside.
_FILES = ('export', 'trace', 'gantt', 'taskgraph')
_ALONE = {'formula': ('compare', 'evaluate_only', 'start', 'memory', 'stale') + _FILES,
          'compare': ('evaluate_only', 'start', 'memory', 'proposals', 'stale') + _FILES,
          'evaluate_only': ('memory', 'proposals', 'stale')}

#: Between two readings of the clock by the progress bar, in proposals.
_BAR_STEP = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('model', metavar='MODEL', help='FILE.py:FUNCTION or MODULE:FUNCTION')
    parser.add_argument('--inputs', nargs='+', required=True, metavar='NAME=SHAPE[:TYPE]',
                        help='of the joint batch, in the order in which the network takes them, or by the names of '
                             "its hybrid_forward's arguments")
    parser.add_argument('--batch-axis', type=int, default=0, metavar='N', help='which dimension has the samples')
    parser.add_argument('--cluster', metavar='FILE', help='the cluster file')
    parser.add_argument('--budget', type=float, metavar='SECONDS', help='of the search (default 4.5)')
    parser.add_argument('--proposals', type=int, metavar='N', help='end the search after so many')
    parser.add_argument('--stale', type=int, metavar='N',
                        help='end the walk from each plan that the search begins with after so many without gain')
    parser.add_argument('--seed', type=int, default=0, metavar='N',
                        help='the same one, with --proposals and a large --budget, finds the same plan')
    parser.add_argument('--memory', type=float, metavar='GB', help='that no rank may exceed')
    parser.add_argument('--states', type=int, default=0, metavar='N',
                        help='arrays that the optimizer keeps beside each weight: 1 for momentum, 2 for adam')
    parser.add_argument('--import', dest='start', metavar='FILE', help='a plan to begin with')
    parser.add_argument('--evaluate-only', action='store_true',
                        help='do not search: predict the plan of --import, or data parallelism')
    parser.add_argument('--compare', nargs='+', metavar='FILE', help='predict several plans')
    parser.add_argument('--export', metavar='FILE', help='write the plan, for mxhybrid.parallelize')
    parser.add_argument('--trace', metavar='FILE', help='write the predicted step as a trace, as MXHYBRID_TRACE does')
    parser.add_argument('--gantt', metavar='PICTURE', help='draw the predicted step; needs matplotlib')
    parser.add_argument('--taskgraph', metavar='PICTURE', help='draw the plan, as .svg or .dot')
    parser.add_argument('--formula', metavar='RANKS', help='print what communication takes by the formulas of Gholami '
                        'et al., for these numbers of ranks: 8,64,512; without --cluster at 2 us and 6 GB/s')
    parser.add_argument('--formula-png', metavar='PICTURE', help='draw that; needs matplotlib')
    parser.add_argument('--profiles', metavar='FILE', help='where times of operators are kept (default: in ~/.cache)')
    parser.add_argument('--keep-busy-times', action='store_true',
                        help='keep times of operators also if other programs computed on this machine meanwhile')


def run(given: argparse.Namespace) -> int:
    """Do what was asked; returns the exit status."""
    try:
        return _run(given)
    except HybridError as error:
        sys.stderr.write('mxhybrid plan: %s\n' % error)
        return 1


def _check_together(given: argparse.Namespace) -> None:
    """InputError for options that do nothing beside others."""
    for name, others in _ALONE.items():
        for other in others:
            if getattr(given, name) and getattr(given, other):
                raise InputError('%s: it does nothing with --%s: leave it out' % (
                    'import' if other == 'start' else other.replace('_', '-'), name.replace('_', '-')))
    if given.formula_png and not given.formula:
        raise InputError('formula-png: there is nothing to draw: give --formula, too')


def _run(given: argparse.Namespace) -> int:
    # As the command does without MXNet otherwise.
    from ..planner import SEARCH_SECONDS, check_diagram_path, load_cluster, no_last_collection
    from .model_argument import load_model, parse_inputs

    if given.cluster is None and not given.formula:
        raise InputError('cluster: none is given: name a file that mxhybrid calibrate has written, --cluster FILE')
    _check_together(given)
    if given.budget is None:
        given.budget = SEARCH_SECONDS
    for name in ('budget', 'proposals', 'memory', 'stale'):
        value = getattr(given, name)
        if value is not None and not value > 0:
            raise InputError('%s: %s: give more than 0' % (name, value))
    if math.isinf(given.budget):
        raise InputError('budget: %s: give seconds after which it ends' % given.budget)
    if given.states < 0 or not 0 <= given.seed < 1 << 32:
        raise InputError('states: %d, seed: %d: give at least 0, and a seed below 2 ** 32' % (given.states, given.seed))
    # What cannot be written is said before a search.
    for name in _FILES + ('formula_png',):
        path = getattr(given, name)
        problem = '' if path is None else cannot_write(path)
        if problem:
            raise InputError('%s: %s' % (name.replace('_', '-'), problem))
    for name, check in (('gantt', check_figure), ('formula_png', check_figure), ('taskgraph', check_diagram_path)):
        if getattr(given, name) is not None:
            try:
                check(getattr(given, name))
            except InputError as error:
                raise InputError('%s: %s' % (name.replace('_', '-'), error)) from error
    parse_inputs(given.inputs)
    cluster = None if given.cluster is None else load_cluster(given.cluster)
    net = load_model(given.model)
    shapes, types = parse_inputs(given.inputs, net)
    if given.formula:
        return _formula(given, net, shapes, types, cluster)
    no_last_collection()
    return _Planning(given, net, shapes, types, cluster).run()


def _formula(given: argparse.Namespace, net: Any, shapes: List[Any], types: List[str], cluster: Any) -> int:
    from ..parallel.ops.tracing import traced
    from ..planner import PAPER_NETWORK, alpha_beta_of, cost_report, cost_rows, draw_costs, frozen_parameters, sizes_of

    try:
        ranks = [int(word) for word in given.formula.split(',')]
    except ValueError as error:
        raise InputError('formula: %r: give numbers of ranks, 8,64,512' % given.formula) from error
    if max(ranks) > _MOST_RANKS:
        raise InputError('formula: %d ranks: give at most %d' % (max(ranks), _MOST_RANKS))
    graph = traced(net, shapes, given.batch_axis, types).graph
    batch = shapes[0][given.batch_axis]
    layers = sizes_of(graph, batch, frozen_parameters(net))
    network = PAPER_NETWORK if cluster is None else alpha_beta_of(cluster)
    console.write(cost_report(layers, batch, ranks, network))
    if given.formula_png:
        draw_costs(cost_rows(layers, batch, ranks, network), given.formula_png)
    return 0


class _Interruption:
    """While a search walks, Ctrl-C ends it with what it has found; before that, and the second time, it ends all."""

    def __init__(self) -> None:
        self.came = self.may_wait = False

    def __enter__(self) -> '_Interruption':
        self._former = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *_: Any) -> None:
        signal.signal(signal.SIGINT, self._former)

    def _take(self, *_: Any) -> None:
        if self.came or not self.may_wait:
            raise KeyboardInterrupt
        self.came = True


class _Planning:
    """A network, a cluster and what is asked of them."""

    def __init__(self, given: argparse.Namespace, net: Any, shapes: List[Any], types: List[str], cluster: Any):
        from ..planner import OperatorProfiler, Planner

        self._given = given
        self._profiles = OperatorProfiler(given.profiles, keep_busy=given.keep_busy_times)
        self._planner = Planner(net, shapes, cluster, self._profiles, given.batch_axis, types, given.states)

    def run(self) -> int:
        """Predict, compare or search."""
        from ..parallel.plans.plan_json import load
        from ..parallel.plans.strategies import data_parallel

        given, planner = self._given, self._planner
        # All are looked at before operators are timed for any.
        plans = {path: load(path) for path in given.compare or [given.start] if path is not None}
        for path, plan in plans.items():
            try:
                planner.splits(plan)
            except InputError as error:
                raise InputError('%s: %s' % (path, error)) from error
        if given.compare:
            self._compare(plans)
            return 0
        start = plans.get(given.start)
        if given.evaluate_only:
            plan = data_parallel() if start is None else start
            prediction = planner.predict(plan)
            try:
                self._show(plan, prediction)
            finally:
                self._write(plan, prediction)
            return 0
        found = self._search(start)
        try:
            self._tell(found)
        finally:  # also where nobody reads on
            self._write(found.plan, found.prediction)
        return 0

    def _tell(self, found: Any) -> None:
        """What a search has come to."""
        from ..parallel.plans.strategies import data_parallel
        from ..planner import prediction_summary

        planner = self._planner
        self._show(found.plan, found.prediction)
        before = found.others['data parallel']
        console.write('\ndata parallelism:')
        console.write('\n'.join(prediction_summary(planner.graph, planner.cluster, planner.splits(data_parallel()),
                                                   before)))
        ratio = found.plain.seconds / found.prediction.seconds if found.prediction.seconds else 1.0
        proposals = sum(walk.proposals for walk in found.discovery.walks)
        if found.plain is not before:
            console.write('\nwithout a plan, each worker with its own statistics: %s a step' % seconds_text(
                found.plain.seconds))
        console.write('\nthe plan comes from %s and is predicted to be %.2f times as fast as the network without a '
                      'plan; %d proposals in %.1f s' % (found.name, ratio, proposals, found.discovery.elapsed))
        if not proposals and any(walk.ended == 'seconds' for walk in found.discovery.walks):
            console.write('the plans that a search begins with took all its time: give it more, with --budget')
        self._front(found)

    def _search(self, start: Any) -> Any:
        from tqdm import tqdm

        given = self._given
        with tqdm(total=given.budget, desc='search', disable=None, bar_format='{desc}: {bar} {postfix}') as bar:
            with _Interruption() as interruption:
                def progress(now: Any) -> bool:
                    interruption.may_wait = True
                    if now.proposals % _BAR_STEP == 0:
                        bar.n = min(now.elapsed, given.budget)
                        bar.set_postfix_str('%d plans, best %s' % (now.proposals, seconds_text(now.best)))
                    return interruption.came

                found = self._planner.search(
                    given.budget, given.proposals, given.seed, None if given.memory is None else given.memory * 1e9,
                    start, progress, given.stale)
        if interruption.came:
            console.write('interrupted: this is the best until then\n')
        return found

    def _compare(self, plans: Dict[str, Any]) -> None:
        from ..parallel.plans.strategies import data_parallel

        rows = []
        for name, plan in {'data parallel': data_parallel(), **plans}.items():
            one = self._planner.predict(plan)
            rows.append([name, seconds_text(one.seconds), size_text(one.largest_memory())])
        console.write(aligned(['plan', 'step', 'memory'], rows))

    def _show(self, plan: Any, prediction: Any) -> None:
        from ..planner import plan_report

        planner = self._planner
        console.write(plan_report(planner.network, planner.cluster, plan, planner.splits(plan), prediction))

    def _write(self, plan: Any, prediction: Any) -> None:
        """The files that were asked for."""
        from ..parallel.plans.plan_json import save
        from ..planner import draw_gantt, draw_plan, write_timeline

        given, planner = self._given, self._planner
        splits = planner.splits(plan)
        tasks: List[Any] = prediction.tasks() if given.trace or given.gantt else []
        title = 'predicted: %s a step' % seconds_text(prediction.seconds)
        if given.export:
            save(given.export, planner.explicit(splits, planner.tables(plan), plan.store.dense))
        if given.trace:
            write_timeline(given.trace, tasks)
        if given.gantt:
            draw_gantt(tasks, given.gantt, title)
        if given.taskgraph:
            draw_plan(given.taskgraph, planner.network, splits, prediction, title)

    def _front(self, found: Any) -> None:
        """What less memory costs."""
        most = found.prediction.largest_memory()
        # From the least memory on: of those that need as much, to its digits, the last is the fastest.
        less = {size_text(one.bytes): seconds_text(one.seconds) for one in found.front if one.bytes < most}
        less.pop(size_text(most), None)
        if less:
            console.write('\nwith less memory (steps that nothing came before):')
            console.write(aligned(['memory', 'step'], [list(one) for one in less.items()]))


if __name__ == '__main__':
    from .main import run_alone

    sys.exit(run_alone('plan'))
