"""Search for the fastest way to split a network over a cluster, by simulated training steps.

MODEL is a function without arguments that returns the network, a HybridBlock: train.py:make_net, or module:make_net.
If the network computes with rows of dynamic tables, the function also returns these tables with the numbers of ids that
a sample looks up: return net.dense, {net.users: 26, net.items: 1}
The cluster file is written by mxhybrid calibrate, or by hand:

  mxhybrid plan train.py:make_net --inputs data=64,3,224,224 --cluster cluster.json --export plan.json
  mxhybrid plan train.py:make_net --inputs data=64,3,224,224 --cluster cluster.json --import plan.json --evaluate-only
  mxhybrid plan train.py:make_net --inputs data=64,3,224,224 --cluster cluster.json --compare a.json b.json
  mxhybrid plan train.py:make_net --inputs data=2048,3,224,224 --formula 8,64,512

The first search of a network times its operators on this machine, which may take minutes; the times are kept in a file.
In training, mxhybrid.parallelize takes the plan that --export writes.
"""
import argparse
import math
import signal
import sys
from typing import Any, Dict, List

from ..base.errors import InputError
from ..base.figures import check_figure
from ..base.files import cannot_write
from ..base.settings import resolve
from ..base.text import aligned, seconds_text, size_text
from . import console
from .launching import handled
from .main import run_alone

#: Maximal number of ranks of a formula, which evaluates all grids.
_MOST_RANKS = 1 << 16

#: Options that write files.
_FILES = ('export', 'trace', 'gantt', 'taskgraph')
#: Options with which nothing is searched, and the options that have no effect with them.
_WITHOUT_EFFECT = {'formula': ('compare', 'evaluate_only', 'start', 'memory', 'patience', 'shard_updates',
                               'no_pipelines') + _FILES,
                   'compare': ('evaluate_only', 'start', 'memory', 'proposals', 'patience', 'no_pipelines') + _FILES,
                   'evaluate_only': ('memory', 'proposals', 'patience', 'no_pipelines')}

#: Number of proposals between two updates of the progress bar.
_BAR_STEP = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('model', metavar='MODEL', help='FILE.py:FUNCTION or MODULE:FUNCTION')
    parser.add_argument('--inputs', nargs='+', required=True, metavar='NAME=SHAPE[:TYPE]',
                        help='shapes of the joint batch of all workers, in the order of the inputs, or in any order by '
                             "the names of hybrid_forward's arguments")
    parser.add_argument('--batch-axis', type=int, default=0, metavar='N',
                        help='dimension of the inputs that has the samples (default 0)')
    parser.add_argument('--cluster', metavar='FILE', help='the cluster file')
    parser.add_argument('--budget', type=float, metavar='SECONDS', help='time of the search (default 4.5)')
    parser.add_argument('--proposals', type=int, metavar='N', help='end the search after N proposals')
    parser.add_argument('--patience', type=int, metavar='N',
                        help='end the chain from each start after N proposals without gain')
    parser.add_argument('--seed', type=int, default=0, metavar='N',
                        help='with --proposals and a large --budget, the same seed finds the same plan (default 0)')
    parser.add_argument('--memory', type=float, metavar='GB', help='memory that no rank may exceed')
    parser.add_argument('--states', type=int, default=0, metavar='N',
                        help='arrays that the optimizer keeps for each weight: 1 for momentum, 2 for adam (default 0)')
    parser.add_argument('--shard-updates', action='store_true',
                        help='updates are divided among the workers, as with MXHYBRID_SHARD_UPDATES=1')
    parser.add_argument('--no-pipelines', action='store_true', help='find a plan without micro-batches')
    parser.add_argument('--import', dest='start', metavar='FILE', help='a plan to begin the search with')
    parser.add_argument('--evaluate-only', action='store_true',
                        help='do not search: predict the plan of --import, or data parallelism')
    parser.add_argument('--compare', nargs='+', metavar='FILE', help='do not search: predict several plans')
    parser.add_argument('--export', metavar='FILE', help='write the plan, for mxhybrid.parallelize')
    parser.add_argument('--trace', metavar='FILE', help='write the predicted step as a trace, as MXHYBRID_TRACE does')
    parser.add_argument('--gantt', metavar='PICTURE', help='draw the predicted step; needs matplotlib')
    parser.add_argument('--taskgraph', metavar='PICTURE', help='draw the plan; PICTURE ends in .svg or .dot')
    parser.add_argument('--formula', metavar='RANKS',
                        help='do not search: print communication costs by the formulas of Gholami et al. for some '
                             'numbers of ranks, for example 8,64,512; without --cluster at 2 us and 6 GB/s')
    parser.add_argument('--formula-png', metavar='PICTURE', help='draw these costs; needs matplotlib')
    parser.add_argument('--profiles', metavar='FILE',
                        help='file that keeps the times of operators (default: one in ~/.cache/mxhybrid)')
    parser.add_argument('--keep-busy-times', action='store_true',
                        help='keep times of operators even if other programs computed on this machine during the '
                             'measurement')


def _option(name: str) -> str:
    """Return an option as it is written on a command line."""
    return '--' + {'start': 'import'}.get(name, name.replace('_', '-'))


def _check_together(options: argparse.Namespace) -> None:
    """Raise InputError if an option has no effect together with another option."""
    for name, others in _WITHOUT_EFFECT.items():
        for other in others:
            if getattr(options, name) and getattr(options, other):
                raise InputError('%s has no effect with %s: leave it out' % (_option(other), _option(name)))
    if options.formula_png and not options.formula:
        raise InputError('--formula-png without --formula has nothing to draw: give --formula, too')


def _check_numbers(options: argparse.Namespace) -> None:
    for name in ('budget', 'proposals', 'memory', 'patience'):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise InputError('%s %s: give a number above 0' % (_option(name), value))
    if math.isinf(options.budget):
        raise InputError('--budget %s: give the number of seconds after which the search ends' % options.budget)
    if options.states < 0:
        raise InputError('--states %d: give a number of arrays, 0 or more' % options.states)
    if not 0 <= options.seed < 1 << 32:
        raise InputError('--seed %d: give a number from 0 to 2 ** 32 - 1' % options.seed)


def _check_files(options: argparse.Namespace) -> None:
    """Raise InputError if a file cannot be written, before a search takes its time."""
    from ..planner import check_diagram_path

    for name in _FILES + ('formula_png',):
        path = getattr(options, name)
        problem = '' if path is None else cannot_write(path)
        if problem:
            raise InputError('%s: %s' % (_option(name), problem))
    for name, check in (('gantt', check_figure), ('formula_png', check_figure), ('taskgraph', check_diagram_path)):
        if getattr(options, name) is not None:
            try:
                check(getattr(options, name))
            except InputError as error:
                raise InputError('%s: %s' % (_option(name), error)) from error


def run(options: argparse.Namespace) -> int:
    # Imported here: other subcommands work without MXNet.
    from ..planner import SEARCH_SECONDS, load_cluster, skip_final_gc
    from .model_argument import load_model, parse_inputs

    if options.cluster is None and not options.formula:
        raise InputError('--cluster is missing: give the file that mxhybrid calibrate has written')
    _check_together(options)
    if options.budget is None:
        options.budget = SEARCH_SECONDS
    _check_numbers(options)
    _check_files(options)
    parse_inputs(options.inputs)
    cluster = None if options.cluster is None else load_cluster(options.cluster)
    net, tables = load_model(options.model)
    shapes, types = parse_inputs(options.inputs, net)
    if options.formula:
        _formula(options, net, shapes, types, cluster)
    else:
        skip_final_gc()
        _Planning(options, net, shapes, types, cluster, tables).run()
    return 0


def _formula(options: argparse.Namespace, net: Any, shapes: List[Any], types: List[str], cluster: Any) -> None:
    from ..native.trainers import frozen_names
    from ..parallel.ops.tracing import traced
    from ..planner import PAPER_NETWORK, cost_report, cost_rows, draw_costs, fit_alpha_beta, layer_sizes

    try:
        ranks = [int(word) for word in options.formula.split(',')]
    except ValueError as error:
        raise InputError('--formula %r: give numbers of ranks, for example 8,64,512' % options.formula) from error
    if max(ranks) > _MOST_RANKS:
        raise InputError('--formula: %d ranks: give at most %d' % (max(ranks), _MOST_RANKS))
    graph = traced(net, shapes, options.batch_axis, types).graph
    batch = shapes[0][options.batch_axis]
    layers = layer_sizes(graph, batch, frozen_names(net.collect_params()))
    network = PAPER_NETWORK if cluster is None else fit_alpha_beta(cluster)
    console.write(cost_report(layers, batch, ranks, network))
    if options.formula_png:
        draw_costs(cost_rows(layers, batch, ranks, network), options.formula_png)


class _Planning:
    """A prediction, comparison or search for a network on a cluster."""

    def __init__(self, options: argparse.Namespace, net: Any, shapes: List[Any], types: List[str], cluster: Any,
                 tables: Dict[Any, float]):
        from ..planner import OperatorProfiler, Planner

        self._options = options
        profiler = OperatorProfiler(options.profiles, keep_busy=options.keep_busy_times)
        self._planner = Planner(net, shapes, cluster, profiler, options.batch_axis, types, options.states,
                                shard_updates=options.shard_updates, pipelines=not options.no_pipelines,
                                tables=tables)

    def run(self) -> None:
        """Predict, compare or search."""
        from ..parallel.plans.plan_json import load
        from ..parallel.plans.strategies import data_parallel

        options, planner = self._options, self._planner
        # All plans are checked before operators are timed for any of them.
        plans = {path: load(path) for path in options.compare or [options.start] if path is not None}
        for path, plan in plans.items():
            try:
                planner.splits(plan)
            except InputError as error:
                raise InputError('%s: %s' % (path, error)) from error
        start = plans.get(options.start)
        if options.compare:
            self._compare(plans)
        elif options.evaluate_only:
            plan = data_parallel() if start is None else start
            prediction = planner.predict(plan)
            try:
                self._print_report(plan, prediction)
            finally:
                self._write_files(plan, prediction)
        else:
            best = self._search(start)
            try:
                self._print_result(best)
            finally:  # even if standard output was closed
                self._write_files(best.plan, best.prediction)

    def _print_result(self, best: Any) -> None:
        """Print the best plan of a search, and compare it with data parallelism and with the network without a plan."""
        from ..parallel.plans.strategies import data_parallel
        from ..planner import prediction_summary

        planner = self._planner
        self._print_report(best.plan, best.prediction)
        baseline = best.others['data parallel']
        console.write('\ndata parallelism:')
        console.write('\n'.join(prediction_summary(planner.graph, planner.cluster, planner.splits(data_parallel()),
                                                   baseline)))
        if best.plain is not baseline:
            console.write('\nwithout a plan, each worker alone with its own samples: %s a step' % seconds_text(
                best.plain.seconds))
        speedup = best.plain.seconds / best.prediction.seconds if best.prediction.seconds else 1.0
        proposals = sum(chain.proposals for chain in best.search_result.chains)
        origin = 'the search' if best.name == 'search' else 'the start %r' % best.name
        console.write('\nthe plan comes from %s and is predicted to be %.2f times as fast as the network without a '
                      'plan; %d proposals in %.1f s' % (origin, speedup, proposals, best.search_result.elapsed))
        if not proposals and any(chain.ended == 'seconds' for chain in best.search_result.chains):
            console.write('the search spent all its time on the plans that it begins with: give it more, with --budget')
        self._print_front(best)

    def _search(self, start: Any) -> Any:
        from tqdm import tqdm

        options = self._options
        memory_bytes = None if options.memory is None else options.memory * 1e9
        has_begun = is_interrupted = False

        def interrupt(*_: Any) -> None:
            """Handle Ctrl-C: the first one ends a search with its best plan; any other one ends the command."""
            nonlocal is_interrupted
            if is_interrupted or not has_begun:
                raise KeyboardInterrupt
            is_interrupted = True

        def progress(now: Any) -> bool:
            nonlocal has_begun
            has_begun = True
            if now.proposals % _BAR_STEP == 0:
                bar.n = min(now.elapsed, options.budget)
                bar.set_postfix_str('%d plans, best %s' % (now.proposals, seconds_text(now.best)))
            return is_interrupted

        with tqdm(total=options.budget, desc='search', disable=None, bar_format='{desc}: {bar} {postfix}') as bar, \
                handled([signal.SIGINT], interrupt):
            result = self._planner.search(options.budget, options.proposals, options.seed, memory_bytes, start,
                                          progress, options.patience)
        if is_interrupted:
            console.write('interrupted: this is the best plan so far\n')
        return result

    def _compare(self, plans: Dict[str, Any]) -> None:
        from ..parallel.plans.strategies import data_parallel

        rows = []
        for name, plan in {'data parallel': data_parallel(), **plans}.items():
            prediction = self._planner.predict(plan)
            rows.append([name, seconds_text(prediction.seconds), size_text(prediction.largest_memory())])
        console.write(aligned(['plan', 'step', 'memory'], rows))

    def _print_report(self, plan: Any, prediction: Any) -> None:
        from ..planner import dynamic_tables_report, plan_report

        planner, settings = self._planner, resolve()
        console.write(plan_report(planner.network_of(plan), planner.cluster, plan, planner.splits(plan), prediction,
                                  planner.stages(plan)))
        tables = dynamic_tables_report(planner.dynamic_tables, planner.cluster, self._options.states,
                                       settings.max_batch_rows, lambda name: settings.storage_for(name)[0])
        if tables:
            console.write('\n' + tables)

    def _write_files(self, plan: Any, prediction: Any) -> None:
        from ..parallel.plans.plan_json import save
        from ..planner import draw_gantt, draw_plan, write_timeline

        options, planner = self._options, self._planner
        splits = planner.splits(plan)
        tasks: List[Any] = prediction.tasks() if options.trace or options.gantt else []
        title = 'predicted step: %s' % seconds_text(prediction.seconds)
        if options.export:
            save(options.export, planner.explicit(splits, planner.tables(plan), planner.stages(plan)))
        if options.trace:
            write_timeline(options.trace, tasks)
        if options.gantt:
            draw_gantt(tasks, options.gantt, title)
        if options.taskgraph:
            draw_plan(options.taskgraph, planner.network_of(plan), splits, prediction, title)

    def _print_front(self, best: Any) -> None:
        """Print the plans on the Pareto front that need less memory."""
        most = best.prediction.largest_memory()
        # Points are in the order of their memory; of those with the same text, the last is the fastest.
        rows = {size_text(point.bytes): seconds_text(point.seconds) for point in best.front if point.bytes < most}
        rows.pop(size_text(most), None)
        if rows:
            console.write('\nplans that need less memory (time of a single step):')
            console.write(aligned(['memory', 'step'], [list(row) for row in rows.items()]))


if __name__ == '__main__':
    sys.exit(run_alone('plan'))
