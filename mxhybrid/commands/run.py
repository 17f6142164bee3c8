"""Run a job that survives the loss of hosts: horovodrun, again on the hosts that are there.

Every failure ends the whole job, as under horovodrun.  Then the command starts again, on the hosts that are left, and
continues from its last commit (mxhybrid.elastic.State), which keepers hold in the memory of the hosts, or from a
checkpoint on disk.

  mxhybrid run -np 4 python train.py
  mxhybrid run -np 4 --min-np 2 -H hostA:1,hostB:1,hostC:1,hostD:1 --network-interface e0 python train.py
  mxhybrid run --min-np 2 --max-np 8 --host-discovery-script ./hosts.sh --slots-per-host 2 python train.py

A script for --host-discovery-script prints a host with its number of workers, such as hostB:2, on each line.  SIGINT,
SIGTERM and SIGHUP of this command end the job.  SIGTERM of a worker, or of all processes of a host, means that the host
is taken away: its workers commit after the step under way and leave.

The exit status is 0 if the job succeeded, else that of its last failure.
"""
import argparse
import logging
import sys
import tempfile
from typing import IO, Callable, List, Optional

from ..base.errors import SettingError
from ..elastic import horovodrun
from ..elastic.hosts import Host, parse_hosts
from ..elastic.keepers import is_this_host
from ..elastic.launcher import ElasticLauncher, Options
from .checks.processes import interpreter
from .main import run_alone

#: A function that returns the command line of a generation on some hosts.
Command = Callable[[List[Host]], List[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('-np', '--num-proc', type=int, metavar='N', help='number of workers')
    parser.add_argument('--min-np', type=int, metavar='N',
                        help='fewest workers; the job waits for them (default: -np)')
    parser.add_argument('--max-np', type=int, metavar='N', help='most workers (default: -np)')
    parser.add_argument('-H', '--hosts', default='', metavar='HOSTS',
                        help='hosts with their numbers of workers, hostA:2,hostB:2 (default: this one)')
    parser.add_argument('--host-discovery-script', default='', metavar='FILE',
                        help='a program that prints the hosts, one a line; it runs each second')
    parser.add_argument('--slots-per-host', type=int, default=1, metavar='N',
                        help='workers of hosts without a number (default %(default)s)')
    parser.add_argument('--reset-limit', type=int, default=3, metavar='N',
                        help='failures, one after the other, after which the job starts again; they count from zero '
                             'after a commit or checkpoint (default %(default)s)')
    parser.add_argument('--elastic-timeout', type=float, default=600.0, metavar='S',
                        help='seconds to wait for --min-np workers (default %(default)g)')
    parser.add_argument('--blacklist-cooldown-range', type=float, nargs=2, default=(10.0, 300.0),
                        metavar=('MIN', 'MAX'),
                        help='seconds for which a host that failed is left out, first and at most (default 10 300)')
    parser.add_argument('--standby', action='store_true',
                        help='start the workers and servers of the next generation after a commit: they wait, which '
                             'saves seconds after a failure and takes memory')
    parser.add_argument('--network-interface', default='', metavar='NAME', help='see horovodrun')
    parser.add_argument('-p', '--ssh-port', type=int, metavar='PORT', help='port of ssh on all hosts')
    parser.add_argument('-i', '--ssh-identity-file', metavar='FILE', help='private key for ssh')
    parser.add_argument('--launch-py', default='', help=argparse.SUPPRESS)  # by scripts/launch.py, for itself
    parser.add_argument('job', nargs=argparse.REMAINDER, metavar='command', help='the command of a worker')


def elastic_options(options: argparse.Namespace) -> Options:
    """Return the settings of a job; SettingError if they cannot work."""
    given = {'-np': options.num_proc, '--min-np': options.min_np, '--max-np': options.max_np}
    least = options.min_np or options.num_proc or options.max_np
    most = options.max_np or options.num_proc or least
    for name, value in dict(given, **{'--slots-per-host': options.slots_per_host}).items():
        if value is not None and value < 1:
            raise SettingError('%s is %d: give a number of at least 1' % (name, value))
    if least is None:
        raise SettingError('the number of workers is missing: give -np, or --min-np and --max-np')
    if least > most:
        raise SettingError('--min-np is %d, more than the %d of --max-np or -np' % (least, most))
    if options.reset_limit < 0:
        raise SettingError('--reset-limit is %d: give a number of at least 0' % options.reset_limit)
    low, high = options.blacklist_cooldown_range
    if not 0 <= low <= high:
        raise SettingError('--blacklist-cooldown-range is %g %g: give two numbers of seconds, the lower one first'
                           % (low, high))
    if options.hosts and options.host_discovery_script:
        raise SettingError('-H and --host-discovery-script are both given: give one of them')
    hosts = parse_hosts(options.hosts.split(','), options.slots_per_host, '-H') if options.hosts else [
        Host('localhost', most)]
    places = sum(host.slots for host in hosts)
    if not options.host_discovery_script and places < least:
        raise SettingError('-H has places for %d workers, fewer than the %d of --min-np or -np' % (places, least))
    ssh: List[str] = []
    if options.ssh_port:
        ssh += ['-p', str(options.ssh_port)]
    if options.ssh_identity_file:
        ssh += ['-i', options.ssh_identity_file]
    return Options(least, most, hosts, options.host_discovery_script, options.slots_per_host, options.reset_limit,
                   options.elastic_timeout, (low, high), options.network_interface, tuple(ssh), options.standby)


def _horovodrun(settings: Options, job: List[str]) -> Command:
    def command(hosts: List[Host]) -> List[str]:
        words = interpreter() + [horovodrun.__file__, '-np', str(sum(host.slots for host in hosts)), '-H',
                                 ','.join('%s:%d' % host for host in hosts), '--gloo']
        # On this host alone, horovodrun takes no interface but that of 127.0.0.1.
        if settings.interface and not all(is_this_host(host.name) for host in hosts):
            words += ['--network-interface', settings.interface]
        return words + list(settings.ssh) + job
    return command


def _launch_py(script: str, hostfile: Optional[IO[str]], words: List[str]) -> Command:
    """Return the function for launch.py, with the other words of its command line."""
    def command(hosts: List[Host]) -> List[str]:
        if hostfile is None:
            return interpreter() + [script, '-n', str(hosts[0].slots)] + words
        # launch.py goes through the lines in turn, first for workers, then for servers.
        lines = [host.name for slot in range(max(host.slots for host in hosts)) for host in hosts if slot < host.slots]
        hostfile.seek(0)
        hostfile.truncate()
        hostfile.write('\n'.join(lines) + '\n')
        hostfile.flush()
        return interpreter() + [script, '-n', str(len(lines)), '-H', hostfile.name] + words
    return command


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(format='mxhybrid run: %(message)s')
    logging.getLogger('mxhybrid').setLevel(logging.INFO)
    job = options.job[1:] if options.job[:1] == ['--'] else options.job
    try:
        if not job:
            raise SettingError('the command of a worker is missing: give it after the options')
        settings = elastic_options(options)
    except SettingError as error:
        sys.stderr.write('mxhybrid run: %s\n' % error)
        return 2

    with tempfile.NamedTemporaryFile('w', prefix='mxhybrid-hosts-') as file:
        command = _horovodrun(settings, job)
        if options.launch_py:
            command = _launch_py(options.launch_py, file if options.hosts or settings.discovery_script else None, job)
        return ElasticLauncher(settings, command).run()


if __name__ == '__main__':
    sys.exit(run_alone('run'))
