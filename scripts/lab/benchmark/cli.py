"""Arguments of scripts/bench, and the order of its runs.

Contenders take turns: in every round each one's job is started, measured and ended before the next begins.  Jobs do not
run at the same time, because Horovod is never idle: its workers communicate every millisecond, over the link and on the
cores that are being measured.
"""
import argparse
import itertools
import json
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Optional

from lab.emulation import CONGESTION_CONTROL, MAX_HOSTS, EmulationError
from lab.files import replace_file
from lab.processes import JobFailed

from . import launching, links, report
from .comparison import Comparison
from .exchange import Exchange
from .interruption import Interrupted, Signals
from .layers import CASES, Layers
from .model_steps import TASKS
from .models import Models
from .pipeline import NAME as PIPELINE, SAMPLES, Pipeline
from .plans import CASES as PLAN_NAMES, NAME as PLANS, Plans
from .recovery import NAME as RECOVERY, run as run_recovery
from .starts import NAME as START, run as run_starts
from .tables import NAME as TABLES, PARTS, run as run_tables
from .testbeds import Emulated, Limited, Loopback
from .training import NAME, Training
from .workloads import WORKLOADS

OVERHEAD = 'overhead'


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _counts(text: str) -> List[int]:
    return [_positive(part) for part in text.split(',')]


def _rate(text: str) -> float:
    if not 0 < float(text) < float('inf'):
        raise ValueError(text)
    return float(text)


def _rates(text: str) -> List[float]:
    return [_rate(part) for part in text.split(',')]


def _scale(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError('%s is not above 0 and at most 1' % text)
    return float(text)


def _output(text: str) -> str:
    path = os.path.realpath(text)
    if os.path.exists(path) and not os.path.isfile(path) or not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError('%s cannot be written: give a file in a directory that exists and is writable'
                                         % text)
    return path


def _variable(text: str) -> List[str]:
    if '=' not in text:
        raise ValueError(text)
    return text.split('=', 1)


def names_of(choices: Iterable[str]) -> Callable[[str], List[str]]:
    """Return the type of an argument that lists some of the choices."""
    def names_in(text: str) -> List[str]:
        names = [name.strip() for name in text.split(',') if name.strip()]
        unknown = [name for name in names if name not in choices]
        if unknown or not names:
            raise argparse.ArgumentTypeError('%s: choose from %s' % (','.join(unknown) or 'none', ', '.join(choices)))
        return names
    return names_in


def parse(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog='scripts/bench', formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description='Exchange the gradients of a model between emulated hosts, by this project and by others.')
    add = parser.add_argument
    add('--workload', default='lm1b',
        choices=list(WORKLOADS) + list(TASKS) + [
            NAME, OVERHEAD, PLANS, PIPELINE, RECOVERY, START, TABLES] + list(CASES),
        help='tensors and access patterns; train_* train a network by each contender; word_lm is a real training run, '
             'overhead its step in one process; layers_* are training steps with layers split by several plans, which '
             'are the contenders then; pipeline is a GPT with a stage on each worker, by two schedules; plans measures '
             'what the planner predicts; recovery measures the commits of an elastic job, and how long it takes to '
             'continue after a kill; start measures how long the workers of a job take to join, and tables '
             'measures dynamic tables, both without emulated hosts')
    add('--width-scale', type=_scale, default=argparse.SUPPRESS,
        help='factor on the width of tables and on dense parameters; 1 is the published model (default: the first of '
             '1, 1/2, 1/4 and 1/8 for which the memory of this machine suffices)')
    add('--shrink', type=_positive, default=1, help='divide the size of the workload by this number, for trials')
    add('--hosts', type=_counts, default=[4], metavar='H[,H...]', help='emulated hosts; several counts give a curve')
    add('--workers', type=_positive, default=2, metavar='G', help='workers on each host')
    add('--mbit', type=_rates, default=[100.0], metavar='RATE[,RATE...]',
        help='rate of every link, in Mbit/s; several rates with several --hosts give a grid')
    add('--tcp', default=CONGESTION_CONTROL, metavar='NAME',
        help="congestion control of the hosts' TCP, as in sysctl net.ipv4.tcp_allowed_congestion_control")
    add('--no-network', action='store_true',
        help='run plain processes on this host, without limits and byte counts; needs no root')
    add('--share', type=_scale, metavar='SHARE',
        help='share of a processor that each emulated host has; by default no limit, for the workload pipeline an '
             'equal share of 80 %% of all processors')
    add('--micro-batches', type=_positive, default=8, metavar='M',
        help='parts of the joint batch, for the workload pipeline')
    add('--contenders', type=names_of(launching.CONTENDERS), default=list(launching.CONTENDERS),
        metavar='NAME[,NAME...]', help='the contenders that take part: ' + ', '.join(launching.CONTENDERS))
    add('--cases', type=names_of(PLAN_NAMES), default=list(PLAN_NAMES), metavar='NAME[,NAME...]',
        help='networks of the workload plans: ' + ', '.join(PLAN_NAMES))
    add('--profiles', metavar='FILE', help='file that keeps the times of operators, for the workload plans')
    add('--parts', type=names_of(PARTS), default=list(PARTS), metavar='NAME[,NAME...]',
        help='parts of the workload tables: ' + ', '.join(PARTS))
    add('--touched', type=_positive, default=1000000, metavar='ROWS',
        help='touched rows of the parts memory, files and checkpoint of the workload tables')
    add('--ids', type=_positive, default=2048, metavar='N',
        help='ids of each of 26 features in a step of a worker, for the workload tables')
    add('--torch-rows', type=_positive, default=10000000, metavar='ROWS',
        help='rows of the table that is compared with that of PyTorch, for the workload tables')
    add('--torch-python', metavar='PATH',
        help='interpreter with PyTorch, for torch_sharded and the workload tables; with TorchRec for torchrec')
    add('--rounds', type=_positive, default=2, help='jobs of each contender')
    add('--steps', type=_positive, default=10, help='steps measured in each job')
    add('--epochs', type=_positive, default=2, help='epochs of the workload word_lm')
    add('--warmup', type=_positive, default=3, help='steps before the measured ones')
    add('--timeout', type=_rate, default=900.0, metavar='SECONDS', help='time limit of a job')
    add('--env', type=_variable, action='append', default=[], metavar='NAME=VALUE',
        help='environment variable for all processes of jobs')
    add('--json', type=_output, metavar='FILE', help='write all figures, after each number of hosts or network')
    add('--plot', type=_output, metavar='FILE.png',
        help='draw bars, and a curve over several --hosts; predictions beside measurements; for training workloads '
             'FILE.svg, with -hosts and -bytes, or for one number of hosts -loss, before the ending; needs matplotlib')
    add('--from', dest='saved', metavar='FILE', help='a file of --json, which --plot draws; nothing is run')
    add('--links', type=_output, metavar='FILE',
        help='draw the use of the link of each host over a step, for workloads that exchange gradients; the name ends '
             'in .png, .svg or .pdf; needs matplotlib')
    args = parser.parse_args(argv)
    if args.links and (args.no_network or args.workload not in WORKLOADS):
        parser.error('argument --links: it needs emulated hosts and one of the workloads %s' % ', '.join(WORKLOADS))
    if args.saved and not args.plot:
        parser.error('argument --from: it needs --plot, the file to draw')
    if args.share is not None and args.no_network:
        parser.error('argument --share: it needs emulated hosts: leave --no-network out')
    if args.no_network:
        args.mbit = [None]
    if not args.no_network and max(args.hosts) > MAX_HOSTS:
        parser.error('argument --hosts: %d: at most %d hosts are emulated' % (max(args.hosts), MAX_HOSTS))
    if args.workload == PIPELINE and SAMPLES % args.micro_batches:
        parser.error('argument --micro-batches: %d does not divide the %d samples of a step: give 1, 2, 4, 8 or 16'
                     % (args.micro_batches, SAMPLES))
    return args


def say(text: str) -> None:
    """Tell the person at the terminal; results alone go to standard output."""
    print(text, file=sys.stderr, flush=True)


def run_hosts(args: argparse.Namespace, kind: Comparison, hosts: int, mbit: Optional[float], signals: Signals
              ) -> Dict[str, Any]:
    """Run all contenders on a number of hosts with links of a rate, in turn, round after round."""
    left_out = {name: reason for name, reason in kind.skipped(hosts).items() if name in args.contenders}
    rounds: Dict[str, List[Dict[str, Any]]] = {name: [] for name in args.contenders if name not in left_out}
    testbed: Any = Loopback()
    if mbit is not None and (args.workload == PIPELINE or args.share is not None):
        testbed = Limited(hosts, mbit, args.tcp, args.share)
    elif mbit is not None:
        testbed = Emulated(hosts, mbit, args.tcp)
    with signals.deferred(), testbed:
        for number in range(args.rounds):
            for name, done in rounds.items():
                started = time.monotonic()
                done.append(kind.run(testbed, hosts, name, signals.check))
                say('%d x %d, round %d of %d, %s: %.3f s/step (job %.0f s)'
                    % (hosts, args.workers, number + 1, args.rounds, name, done[-1]['step_s'],
                       time.monotonic() - started))
    contenders = {name: report.over_rounds(done, kind.units(hosts)) for name, done in rounds.items()}
    report.add_ratios(contenders)
    return {'hosts': hosts, 'workers': args.workers, 'mbit': mbit, 'unit': kind.unit, 'units': kind.units(hosts),
            'model': kind.describe(), 'width': kind.width, 'skipped': left_out, 'bound': kind.bound(hosts, mbit),
            'contenders': contenders, 'told': kind.told(contenders)}


def _settings(args: argparse.Namespace) -> Dict[str, Any]:
    settings = {name: value for name, value in vars(args).items() if name not in ('json', 'plot', 'saved')}
    command = 'scripts/bench ' + ' '.join(os.path.basename(word) if os.path.isabs(word) else word
                                          for word in sys.argv[1:])
    return dict(settings, command=command, processor=_processor(), cores=os.cpu_count(),
                load_before=os.getloadavg()[0], machine=platform.platform(), python=platform.python_version(),
                started=time.strftime('%Y-%m-%dT%H:%M:%S%z'))


def _processor() -> str:
    with open('/proc/cpuinfo') as lines:
        return next((line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')), 'unknown')


def _draw(result: Dict[str, Any], file: str) -> None:
    from . import plot, training_figures

    if result['settings']['workload'] in TASKS:
        say('bench: %s' % ', '.join(training_figures.draw_training(result, file)))
    else:
        plot.draw(result, file)


def main(argv: Optional[List[str]] = None) -> int:
    """Run the benchmark; returns the exit status."""
    args = parse(argv)
    for option, picture in (('--plot', args.plot), ('--links', args.links)):
        if picture:
            from mxhybrid.base.errors import InputError  # which brings MXNet into this process
            from mxhybrid.base.figures import check_figure

            try:
                check_figure(picture)
            except InputError as error:
                say('bench: %s %s' % (option, error))
                return 2
    if args.saved:
        with open(args.saved) as file:
            _draw(json.load(file), args.plot)
        return 0
    result: Dict[str, Any] = {'settings': _settings(args), 'runs': []}

    def keep(runs: List[Dict[str, Any]]) -> None:
        result['runs'] += runs
        if args.json:
            replace_file(args.json, json.dumps(result, indent=1))

    if args.workload == OVERHEAD:
        from .overhead import run  # which trains in this very process

        keep(run(args))
        return 0
    by_itself = {TABLES: run_tables, START: run_starts, RECOVERY: run_recovery}
    try:
        if args.workload in by_itself:
            keep(by_itself[args.workload](args, say))
            return 0
        with Signals() as signals:
            if args.workload == PLANS:
                for figures in Plans(args, signals, say).runs():
                    keep([figures])
            else:
                _compare(args, signals, result, keep)
    except (EmulationError, JobFailed) as error:
        say('bench: %s' % error)
        if isinstance(error, EmulationError):
            say('bench: --no-network runs plain processes instead')
        return 1
    except KeyboardInterrupt:
        say('bench: interrupted; all processes are gone')
        return 130
    except Interrupted as error:
        say('bench: %s; all processes and namespaces are gone' % error)
        return 128 + error.number
    if args.plot:
        _draw(result, args.plot)
    return 0


def _compare(args: argparse.Namespace, signals: Signals, result: Dict[str, Any],
             keep: Callable[[List[Dict[str, Any]]], None]) -> None:
    kinds: Dict[str, Callable[..., Comparison]] = {
        NAME: Training, PIPELINE: Pipeline, **dict.fromkeys(TASKS, Models), **dict.fromkeys(CASES, Layers)}
    kind = kinds.get(args.workload, Exchange)(args)
    for hosts, mbit in itertools.product(args.hosts, args.mbit):
        figures = run_hosts(args, kind, hosts, mbit, signals)
        _print_run(args, figures, result['settings'])
        keep([figures])
    if len(result['runs']) > 1:
        print('\n%s, %d workers a host: seconds a step (CPU seconds), the fastest marked\n%s'
              % (args.workload, args.workers, report.grid(result['runs'])), flush=True)


def _print_run(args: argparse.Namespace, run: Dict[str, Any], settings: Dict[str, Any]) -> None:
    link = 'no network' if run['mbit'] is None else '%g Mbit/s, TCP %s' % (run['mbit'], args.tcp)
    print('\n%s: %d hosts x %d workers, %s; %s' % (args.workload, run['hosts'], run['workers'], link, run['model']))
    print(report.table(run))
    if args.links:
        uses = {name: figures['rounds'][-1]['links'] for name, figures in run['contenders'].items()}
        for name, use in uses.items():
            print('* %s: %s' % (name, links.describe(use)))
        links.draw(uses, args.links)
    for sentence in run['told'] + report.explain(run, settings):
        print('* ' + sentence)
    sys.stdout.flush()
