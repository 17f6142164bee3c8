"""Starts a job again with the hosts that are there, until its command succeeds: the loop of generations.

A generation is one run of the command, with a number (``MXHYBRID_RESTART``).  It ends as every job ends: as a whole.
The keepers of the hosts (:mod:`mxhybrid.elastic.keeper`) outlive it, with the commits of the job.  The first host of
the next generation is one that has the newest commit, since worker 0 reads it.

A generation that fails counts as an attempt, unless there was a commit or checkpoint since the failure before.  A
generation that ends since hosts come or go counts not: its workers are asked to commit after the step under way, and to
leave, see :mod:`mxhybrid.elastic.state`.
"""
import ctypes
import math
import os
import queue
import secrets
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ..base.launcher import STANDBY
from ..base.log import get_logger
from ..base.machine import describe_status
from ..base.text import size_text
from ..messaging.keeper_channel import GENERATION, KEEPER
from .hosts import Cooldowns, Discovery, Host, chosen_slots
from .keepers import KeeperProcess, Keepers, is_this_host

logger = get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds for all workers to answer before they are asked to leave, for them to commit and leave then, and for the copy
#: of the last commit of a host that goes.
ANSWER_S, LEAVE_S, COPY_S = 10.0, 60.0, 30.0
#: Seconds before workers that did not answer are asked again: their script may have no State.
_ASK_AGAIN_S = 60.0
#: Seconds between two signs of life to keepers, and for all of them to answer after a failure.
_PING_S, _NOTICE_S = 2.0, 0.5
#: Seconds for workers that stand by to end when the job does; some may still import MXNet.
_END_S = 20.0
#: Seconds from the end of a keeper to the start of another one: if the job fails before, the host has failed.
_KEEPER_S = 3.0
_TAKEN = 'it is taken away (SIGTERM)'
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass
class Options:
    """The settings of an elastic job."""

    #: Fewest and most workers.
    min_np: int
    max_np: int
    hosts: List[Host]
    discovery_script: str = ''
    slots_per_host: int = 1
    #: The most generations that may fail one after the other without progress, after the first one.
    reset_limit: int = 3
    #: Seconds to wait for `min_np` workers.
    elastic_timeout_s: float = 600.0
    cooldown_s: Tuple[float, float] = (10.0, 300.0)
    interface: str = ''
    ssh: Tuple[str, ...] = ()
    #: Whether the next generation stands by, see :mod:`mxhybrid.job.standby`.
    standby: bool = False


class ElasticLauncher:
    """Runs a job in generations; ``command(hosts)`` returns the command line for these hosts."""

    def __init__(self, options: Options, command: Callable[[List[Host]], List[str]]):
        self._options, self._command = options, command
        self._events: 'queue.Queue[Tuple[str, Any, Any]]' = queue.Queue()
        self._discovery = Discovery(options.discovery_script, options.slots_per_host,
                                    lambda: self._events.put(('hosts', None, None)), options.hosts)
        self._cooldowns = Cooldowns(options.cooldown_s)
        job = secrets.token_hex(8)
        self._environment = dict(os.environ, **{KEEPER: job})
        self._keepers = Keepers(job, options.interface, list(options.ssh),
                                lambda keeper, message: self._events.put(('keeper', keeper, message)))
        self._stopped: Optional[int] = None
        self._process: Optional['subprocess.Popen[bytes]'] = None
        self._generation = self._last_generation = -1
        #: The hosts and the command of the next generation, which was started before it is needed.
        self._standby: Optional[Tuple[List[Host], 'subprocess.Popen[bytes]']] = None
        #: Commands that stood by and are not needed: their workers end when the next generation begins.
        self._unneeded: List['subprocess.Popen[bytes]'] = []
        self._order: List[str] = []
        self._commits = self._commit_bytes = 0
        #: Why the script cannot run on a number of workers, '' if that is not known; and the numbers on which it has
        #: made progress.
        self._problems: Dict[int, str] = {}
        self._proven: Set[int] = set()
        self._last_ping = 0.0
        self._reset()

    def _reset(self) -> None:
        """Forget the generation before."""
        self._used: List[Host] = []
        self._status: Optional[int] = None
        self._answers: Dict[int, int] = {}
        self._target_sent = self._has_left = self._has_progress = self._was_terminated = False
        #: The time from which workers may be asked to leave, and the end of the time for their answers.
        self._ask_from = 0.0
        self._deadline: Optional[float] = None
        #: The end of keepers, by host.
        self._lost: Dict[str, float] = {}
        #: Hosts whose keepers have answered after a failure.
        self._here: Set[str] = set()
        self._uncopied = False
        self._standing_by = 0
        #: The first SettingError or InputError with which a script ended.
        self._refusal = ''
        #: Hosts of which a worker got SIGTERM.
        self._leaving: List[str] = []

    # ------------------------------------------------------------------------------------------- the loop

    def run(self) -> int:
        """Run the job to its end; return the exit status, 128 + n after signal n."""
        former = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS
                  if signal.getsignal(number) != signal.SIG_IGN}  # nohup, or a job in a script's background
        try:
            self._discovery.start()
            return self._run()
        finally:
            self._discovery.close()
            self._end_standby()
            self._keepers.close()
            for number, handler in former.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        attempts = status = 0
        while True:
            self._reset()
            self._used = self._wait_for_hosts()
            if not self._used:
                return 128 + self._stopped if self._stopped else status or 1
            status, workers = self._run_generation(), sum(host.slots for host in self._used)
            self._problems[workers] = ''
            if self._has_progress:
                self._proven.add(workers)
            if self._stopped is not None:
                logger.error('ended by %s', signal.Signals(self._stopped).name)
                return status or 128 + self._stopped
            if status == 0 and not (self._has_left or self._was_terminated):
                logger.info('the job ended in generation %d%s', self._generation, ', after %d commits of %s' % (
                    self._commits, size_text(self._commit_bytes)) if self._commits else '')
                return 0
            if status == 0:
                continue
            if self._refusal and workers not in self._proven:
                self._problems[workers] = 'the script cannot run on %d workers: %s' % (workers, self._refusal)
                if not self._choose()[1]:  # the wait for hosts names no problem
                    logger.warning('generation %d ended: %s', self._generation, self._problems[workers])
                continue
            attempts = 1 if self._has_progress else attempts + 1
            if attempts > self._options.reset_limit:
                logger.error('generation %d, of %d workers, ended with %s: giving up after %d failures without a '
                             'commit or a checkpoint. See the output for the cause, or raise --reset-limit',
                             self._generation, workers, describe_status(status), attempts)
                return status
            logger.warning('generation %d ended with %s: the job starts again, attempt %d of %d', self._generation,
                           describe_status(status), attempts, self._options.reset_limit)

    def _stop(self, number: int, frame: Any) -> None:
        self._stopped = number
        self._events.put(('stop', None, None))
        if self._process is not None:
            self._process.send_signal(number)

    # ------------------------------------------------------------------------------------------- hosts

    def _known(self) -> List[Host]:
        """Return the hosts that are not left out, in the order of the last generation, new ones at the end."""
        order = {name: place for place, name in enumerate(self._order)}
        return sorted(self._cooldowns.without(self._discovery.hosts), key=lambda host: order.get(host.name, len(order)))

    def _choose(self) -> Tuple[List[Host], str]:
        """Return the hosts to use, none if there are too few, and why the script cannot run on them, '' if it can.

        If it cannot run on all, they have fewer workers, unless it may have run on no number so far.
        """
        known, least, most = self._known(), self._options.min_np, self._options.max_np
        first = chosen_slots(known, least, most)
        problem = self._problems.get(sum(host.slots for host in first), '')
        if problem and '' in self._problems.values():
            for workers in range(sum(host.slots for host in first) - 1, least - 1, -1):
                if not self._problems.get(workers):
                    return chosen_slots(known, least, workers), ''
        return first, problem

    def _wait_for_hosts(self) -> List[Host]:
        """Return the hosts of the next generation, on which keepers run; none if there are too few in time."""
        options = self._options
        deadline, has_told = time.monotonic() + options.elastic_timeout_s, False
        while self._stopped is None:
            chosen, problem = self._choose()
            if chosen and not problem:
                absent = self._keepers.use([host.name for host in chosen])
                if not absent:
                    return self._by_commits(chosen)
                for name in absent:
                    self._leave_out(name, 'its keeper does not start')
                continue
            known = self._known()
            state = problem or '%d of at least %d workers have a place, on %s%s' % (
                sum(host.slots for host in known), options.min_np, ', '.join(host.name for host in known) or 'no host',
                '; %s' % self._discovery.problem if self._discovery.problem else '')
            wait_s = self._cooldowns.next_s(self._discovery.hosts)
            if problem and not ('' in self._problems.values() and (options.discovery_script or wait_s)):
                logger.error('%s', problem)
                return []
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                logger.error('%s after %g s: the job ends. Add hosts, or change --min-np or --elastic-timeout', state,
                             options.elastic_timeout_s)
                return []
            if not has_told:
                logger.warning('%s: waiting for hosts, for at most %g s', state, options.elastic_timeout_s)
                has_told = True
            self._handle_one(min(left_s, 1.0 if wait_s is None else wait_s + 0.01))
        return []

    def _by_commits(self, hosts: List[Host]) -> List[Host]:
        """Return the hosts, those with the newest commit first."""
        newest = {host.name: self._keepers.newest(host.name) for host in hosts}
        best = max(newest.values())
        if not best and self._commits:
            logger.warning('no keeper has a commit any more: the job continues from the newest checkpoint on disk')
        return sorted(hosts, key=lambda host: newest[host.name] != best)

    def _leave_out(self, name: str, reason: str) -> None:
        pause_s = self._cooldowns.add(name)
        logger.warning('host %s is left out for %g s: %s', name, pause_s, reason)

    # ------------------------------------------------------------------------------------------- a generation

    def _run_generation(self) -> int:
        names = [host.name for host in self._used]
        self._order = names + [name for name in self._order if name not in names]
        self._process = self._take_standby()
        if self._process is None:
            self._last_generation += 1
        self._generation = self._last_generation
        self._keepers.begin(self._generation, names)
        logger.info('generation %d: %d workers on %s%s', self._generation, sum(host.slots for host in self._used),
                    ', '.join('%s:%d' % host for host in self._used), ', which stood by' if self._process else '')
        if self._process is None:
            self._process = self._start(self._generation)
        if self._stopped is not None:  # it came while the command was being started
            self._process.send_signal(self._stopped)
        while self._status is None:
            self._handle_one(_PING_S)
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._out_of_time()
        self._process = None
        if self._status:
            self._keepers.tell_all('ask')
            self._handle_until(_NOTICE_S, lambda: self._here.union(self._lost).issuperset(names))
            for name in self._lost:
                if not is_this_host(name):
                    self._leave_out(name, 'its keeper ended, too')
        elif self._target_sent:
            self._handle_until(_PING_S, lambda: self._has_left)
            for name in self._leaving if self._has_left else []:
                self._leave_out(name, _TAKEN)
            self._handle_until(COPY_S, lambda: not self._has_left or not self._uncopied)
        return self._status

    def _handle_until(self, seconds: float, is_done: Callable[[], bool]) -> None:
        """Handle events until a condition holds, for some seconds at most."""
        end = time.monotonic() + seconds
        while not is_done() and time.monotonic() < end and self._stopped is None:
            self._handle_one(end - time.monotonic())

    def _stand_by(self) -> None:
        """Start the next generation on the same hosts, once; its workers wait."""
        if self._options.standby and self._standby is None:
            self._last_generation += 1
            self._standby = self._used, self._start(self._last_generation, **{STANDBY: '1'})

    def _take_standby(self) -> Optional['subprocess.Popen[bytes]']:
        """Return the command that stands by, if it can be used on the hosts of this generation."""
        standby, self._standby = self._standby, None
        if standby is None:
            return None
        hosts, process = standby
        if hosts == self._used and process.poll() is None:
            return process
        self._unneeded.append(process)
        return None

    def _end_standby(self) -> None:
        """Let workers that stand by end, and wait for that."""
        if self._standby is not None:
            self._unneeded.append(self._standby[1])
        if self._unneeded:
            self._keepers.tell_all('generation', number=self._last_generation + 1, next_address=None)
        for process in self._unneeded:
            if self._stopped is not None:
                process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:  # its workers end with the keepers
                process.kill()
                process.wait()

    def _start(self, generation: int, **variables: str) -> 'subprocess.Popen[bytes]':
        library, parent = ctypes.CDLL(None), os.getpid()

        def die_with_parent() -> None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before
                os._exit(1)

        # A session of its own: Ctrl-C reaches the command once, by way of this process.
        process = subprocess.Popen(self._command(self._used), start_new_session=True, preexec_fn=die_with_parent,
                                   env=dict(self._environment, **{GENERATION: str(generation)}, **variables))

        def wait() -> None:
            status = process.wait()
            self._events.put(('ended', process, status if status >= 0 else 128 - status))

        threading.Thread(target=wait, daemon=True).start()
        return process

    def _handle_one(self, seconds: float) -> None:
        """Wait for an event, `seconds` at most, and handle it."""
        if time.monotonic() > self._last_ping + _PING_S / 2:
            self._last_ping = time.monotonic()
            self._keepers.tell_all('ping')
            if self._process is not None:
                self._look_for_hosts()  # the pause of a host may have ended
                self._replace_keepers()
        try:
            kind, source, value = self._events.get(timeout=max(0.0, min(seconds, _PING_S / 2)))
        except queue.Empty:
            return
        if kind == 'ended' and source is self._process:
            self._status = value
        elif kind == 'hosts' and self._process is not None:
            self._look_for_hosts()
        elif kind == 'keeper' and self._keepers.is_current(source):
            if value is None:
                self._lose(source)
            else:
                self._hear(source, value)

    def _lose(self, keeper: KeeperProcess) -> None:
        if any(host.name == keeper.host for host in self._used):
            self._lost[keeper.host] = time.monotonic()
        else:
            self._leave_out(keeper.host, 'its keeper does not start, or has ended')

    def _replace_keepers(self) -> None:
        """Start keepers again that have ended while the job goes on; leave out hosts on which none starts."""
        lost = [name for name, ended_s in self._lost.items() if time.monotonic() > ended_s + _KEEPER_S]
        if not lost:
            return
        self._lost.clear()
        names = [host.name for host in self._used]
        absent = self._keepers.use(names)
        for name in lost:
            if name not in absent:
                logger.warning('the keeper of host %s has ended: another one was started, without its commits', name)
        for name in absent:
            self._leave_out(name, 'its keeper has ended, and does not start again')
        if absent and self._process is not None:
            self._terminate()  # the workers there may be cut off
        elif not absent:
            self._keepers.begin(self._generation, names)

    def _hear(self, keeper: KeeperProcess, message: Dict[str, Any]) -> None:
        kind, value = message['kind'], message.get('value')
        if kind == 'ready' and self._process is not None:
            self._look_for_hosts()
        if message['generation'] != self._generation:
            return
        if kind == 'commit':
            self._has_progress, self._uncopied = True, len(self._used) > 1
            self._commits += 1
            self._stand_by()
            self._commit_bytes += message['size_bytes']
            logger.debug('commit of step %s: %d bytes', message['step'], message['size_bytes'])
        elif kind == 'copied':
            self._uncopied = False
        elif kind == 'not_copied':
            self._uncopied = False
            logger.warning('the commits of host %s were not copied to the next host: %s', keeper.host, value)
        elif kind == 'not_committed':
            self._target_sent, self._deadline = False, None  # the workers go on, and log it
        elif kind == 'checkpoint':
            self._has_progress = True
            self._stand_by()
        elif kind == 'here':
            self._here.add(keeper.host)
        elif kind == 'stands_by':
            self._standing_by += 1
            if self._standing_by == sum(host.slots for host in self._used):
                logger.info('generation %d stands by', self._last_generation)
        elif kind == 'refusal':
            self._refusal = self._refusal or str(value)
        elif kind == 'host_leaving':
            self._leave_out(keeper.host, _TAKEN)
            self._ask('host %s leaves' % keeper.host)
        elif kind == 'leaving':
            # A launcher sends SIGTERM, too, to end a job that fails: then the host stays.
            self._leaving.append(keeper.host)
            self._ask(str(value))
        elif kind == 'call' and isinstance(value, list):
            self._answers[value[0]] = value[1]
            if len(self._answers) == sum(host.slots for host in self._used) and not self._target_sent:
                self._target_sent, self._ask_from = True, math.inf
                self._deadline = time.monotonic() + LEAVE_S
                self._keepers.tell_all('target', value=max(self._answers.values()))
        elif kind == 'left':
            self._has_left = True

    # ------------------------------------------------------------------------------------------- changes of hosts

    def _look_for_hosts(self) -> None:
        """Ask the workers to leave if other hosts than those of the generation are to be used."""
        chosen, problem = self._choose()
        if chosen and not problem and sorted(chosen) != sorted(self._used):
            names = [host.name for host in self._used]
            started = [host.name in names or self._keepers.is_started(host.name) for host in chosen]
            if all(started):
                self._ask('the hosts change')

    def _ask(self, reason: str) -> None:
        if time.monotonic() >= self._ask_from:
            logger.info('%s: the workers are asked to leave after a commit', reason)
            self._deadline = time.monotonic() + ANSWER_S
            self._ask_from = self._deadline + _ASK_AGAIN_S
            self._keepers.tell_all('pin', value=None)

    def _out_of_time(self) -> None:
        """Let workers go on if not all answered; end those that do not leave."""
        self._deadline = None
        if not self._target_sent:
            self._keepers.tell_all('target', value=None)
            self._answers.clear()
        elif self._process is not None:
            logger.warning('the workers did not leave within %g s: ending them', LEAVE_S)
            self._terminate()

    def _terminate(self) -> None:
        """End the generation.

        horovodrun may then end with status 0, which is no success: its processes wait for their children twice, by
        subprocess and by psutil, and subprocess takes the status of a child that is gone for 0.
        """
        assert self._process is not None
        self._was_terminated = True
        self._process.terminate()
