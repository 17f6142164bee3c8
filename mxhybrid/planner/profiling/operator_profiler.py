"""Times of shards of operators and of whole programs on this machine, measured once and kept in a file."""
import contextlib
import hashlib
import json
import math
import os
import time
import weakref
from typing import Any, Container, Dict, Iterable, List, Optional, Set, Tuple

import mxnet as mx
from tqdm import tqdm

from ...base.errors import InputError
from ...base.log import get_logger
from ...base.text import size_text
from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import collectives, rule_of
from ...parallel.ops.rule import OperatorShard
from ...parallel.runtime.network_shards import NetworkShards
from ...parallel.runtime.rank_program import ProgramSpec
from ...parallel.sharding.split import OutputShard
from .core_benchmark import KernelTimes, TimingBatch
from .local_program import LocalProgram, can_be_blocked, local_program
from .profile_cache import default_path, merge_profiles, read_profiles
from .profile_key import ProfileKeys
from .roofline import CONVERSION, OperatorTime, RooflineEstimator, Work, roofline_seconds, work_of
from .scaled_shard import ScaledShard, scaled_shard
from .single_operator import conversion_program
from .timer import LEAST_SHARE, PassSeconds, ProgramTimer, call_overhead, time_shard

logger = get_logger(__name__)

#: Maximal bytes that a timed shard may read and write: with gradients and temporary space MXNet needs about six times
#: as much memory, and keeps some of it.  Larger shards of data parallelism are timed as scaled shards.
MAX_BYTES = 1 << 28

#: Seconds after which new times are written, so that little is lost with a process; this is also the length of a batch.
_SAVE_S = 20.0


class OperatorProfiler:
    """Measures times of operators on this machine, and keeps them in a file.

    Shards are timed as they run in a program: several of them in one call, in CPU time where MXNet computes with one
    thread.  A shard is measured when its time is first asked for, which takes 0.2 s, or with others by :meth:`measure`.

    Parameters
    ----------
    path : str or os.PathLike, optional
        The file that keeps the times, by default one in ``~/.cache/mxhybrid`` for this MXNet, CPU and number of
        threads.  Processes may share it.
    measure : bool, optional
        False: times that the file lacks are estimated, not measured.
    keep_busy : bool, optional
        True: keep times also if other programs computed during the measurement, which makes them too long.  By default
        such times are used by this object and not written, and a warning says so.

    Raises
    ------
    InputError
        `path` is not a name, or the file has another format or was measured on another machine.
    """

    def __init__(self, path: Any = None, measure: bool = True, keep_busy: bool = False):
        if not isinstance(path, (str, os.PathLike, type(None))):
            raise InputError('profiles=%r: give the name of a file' % (path,))
        self.path: str = default_path() if path is None else os.fspath(path)
        self._measures, self._keeps_busy = measure, keep_busy
        self._known = read_profiles(self.path)
        self._new: Dict[str, Dict[str, List[float]]] = {section: {} for section in self._known}
        self._estimator = RooflineEstimator()
        self._written_at = time.monotonic()
        self._warned_unwritable = self._warned_busy = False
        #: The batch that is being timed, if any.
        self._batch: Optional[TimingBatch] = None
        #: Keys of shards that cannot be timed: they are estimated.
        self._untimed: Set[str] = set()
        #: Operators that a warning has named as not timed.
        self._warned_untimed: Set[str] = set()
        self._keys: 'weakref.WeakKeyDictionary[Graph, Dict[Any, ProfileKeys]]' = weakref.WeakKeyDictionary()
        #: The number of programs and shards that this object has measured.
        self.measured = 0

    # -- shards ----------------------------------------------------------------------------------------------------

    def shard_seconds(self, graph: Graph, operator: Operator, output_shard: OutputShard, frozen: Any = (),
                      measure: bool = True, needed: bool = False,
                      operator_shard: Optional[OperatorShard] = None) -> PassSeconds:
        """Return the time of a shard of an operator.

        Parameters
        ----------
        graph : Graph
        operator : Operator
            One of ``graph.computing``.
        output_shard : OutputShard
            The box of its first output that the shard computes.
        frozen : set of str, optional
            Parameters that receive no gradients.
        measure : bool, optional
            Measure the shard if its time is not known, unless it is too large or this object only estimates.
        needed : bool, optional
            Measure a scaled shard if it is too large.
        operator_shard : OperatorShard, optional
            What the operator's rule says of the output shard, if that is known.

        Returns
        -------
        PassSeconds
            Forward and backward, in seconds of a core.
        """
        keys = self.keys(graph, frozen)
        operator_shard = operator_shard or rule_of(operator).shard(graph, operator, output_shard)
        only_estimate, work = not (self._measures and measure), work_of(graph, operator, operator_shard)
        kind = keys.kind(operator, output_shard)
        if only_estimate and not self._current_estimator().has(kind, work):
            # Its time is not known, whatever its key is.
            return self._estimate(kind, work, keys.has_backward(operator))
        key = keys.key(operator, output_shard, operator_shard)
        known = self._known['parts'].get(key)
        if known is not None:
            return PassSeconds(known[0], known[1])
        can_time = not only_estimate and key not in self._untimed
        shard = _shard_to_time(graph, operator, output_shard, needed) if can_time else None
        if shard is None:
            return self._estimate(kind, work, keys.has_backward(operator))
        speed = self._speed_now()
        try:
            forward, backward = time_shard(keys.program(operator, shard.output_shard, output_shard))
            backward += sum(time_shard(program).forward for program in keys.gradient_sums(operator, shard.output_shard))
        except Exception as error:  # of any kind: a search goes on without this time
            self._untimed.add(key)
            self._warn_untimed(graph, operator, error)
            return self._estimate(kind, work, keys.has_backward(operator))
        scale = roofline_seconds(work) / roofline_seconds(shard.work) if shard.output_shard != output_shard else 1.0
        seconds = PassSeconds(forward * speed * scale, backward * speed * scale)
        self._add('parts', key, [*seconds, *work])
        return seconds

    def _warn_untimed(self, graph: Graph, operator: Operator, error: Exception) -> None:
        """Warn once about each operator that cannot be timed, and discard the error that MXNet still holds."""
        with contextlib.suppress(Exception):
            mx.nd.waitall()  # an operator that failed raises its error here again
        text = '%s (%s of shape %s, %s)' % (graph.label(operator), operator.op, graph.shape(operator),
                                            graph.dtypes[operator.number, 0])
        if text not in self._warned_untimed:
            self._warned_untimed.add(text)
            logger.warning('profiles: %s cannot be timed on this machine, its time is estimated from other operators: '
                           '%s: %s', text, type(error).__name__, _last_line(error))

    def conversion_seconds(self, shape: Tuple[int, ...], measure: bool = True) -> float:
        """Return the time to convert an array of float32 from a blocked layout of oneDNN to the default layout, in
        seconds of a core; a conversion in the other direction takes about as long.

        Parameters
        ----------
        shape : tuple of int
        measure : bool, optional
            As for :meth:`shard_seconds`.
        """
        key = '%s %s' % (CONVERSION, 'x'.join(map(str, shape)))
        known = self._known['parts'].get(key)
        if known is not None:
            return known[0]
        work = Work(0.0, 2.0 * 4 * math.prod(shape))
        if not (self._measures and measure) or work.bytes > MAX_BYTES or not can_be_blocked(shape, 'float32'):
            return self._current_estimator().estimate(CONVERSION, work)[0]
        speed = self._speed_now()
        seconds = time_shard(conversion_program(shape)).forward * speed
        self._add('parts', key, [seconds, 0.0, *work])
        return seconds

    def measure(self, graph: Graph, shards: Iterable[Tuple[Operator, OutputShard]], frozen: Any = (),
                needed: Container[Tuple[int, OutputShard]] = ()) -> int:
        """Measure the shards whose times are not known yet, write them, and return the number of new ones.

        A terminal shows a progress bar.  Shards that are too large are estimated, except for those in `needed`, which
        has pairs of an operator's number and an output shard.
        """
        keys = self.keys(graph, frozen)
        missing = {key: (operator, output_shard, (operator.number, output_shard) in needed)
                   for operator, output_shard in shards for key in [keys.key(operator, output_shard)]
                   if key not in self._known['parts'] and key not in self._untimed}
        too_large = [key for key, shard in missing.items() if self._measures and _shard_to_time(graph, *shard) is None]
        for key in too_large:
            del missing[key]
        if too_large:
            logger.warning('profiles: %d shards of operators read and write more than %s: they are not timed, their '
                           'times are estimated from smaller ones', len(too_large), size_text(MAX_BYTES))
        for operator, output_shard, is_needed in tqdm(missing.values(), desc='operators', unit=' shards',
                                               disable=None if missing else True):
            self.shard_seconds(graph, operator, output_shard, frozen, needed=is_needed)
        self.save()
        return len(missing)

    def keys(self, graph: Graph, frozen: Any = ()) -> ProfileKeys:
        """Return the keys of the shards of a graph."""
        known, names = self._keys.setdefault(graph, {}), frozenset(frozen)
        if names not in known:
            known[names] = ProfileKeys(graph, collectives(), frozen=names)
        return known[names]

    def _estimate(self, kind: str, work: Work, has_backward: bool) -> PassSeconds:
        forward, backward = self._current_estimator().estimate(kind, work)
        return PassSeconds(forward, backward if has_backward else 0.0)

    def _current_estimator(self) -> RooflineEstimator:
        if len(self._estimator) != len(self._known['parts']):
            self._estimator = RooflineEstimator(
                OperatorTime(key.split()[0], Work(entry[2], entry[3]), entry[0], entry[1])
                for key, entry in self._known['parts'].items())
        return self._estimator

    # -- programs --------------------------------------------------------------------------------------------------

    def program_seconds(self, parts: NetworkShards, rank: int, shares: Any, frozen: Any = (),
                        blocked: Container[int] = ()) -> Optional[PassSeconds]:
        """Return the time of a rank's whole program without its redistributions and without the overhead of a call; see
        :func:`.local_program.local_program`.  `shares` has the boxes of inputs and outputs, as InputShards.

        Returns None if the time is not known and this object only estimates, or if the program cannot be timed, which a
        warning says.
        """
        try:
            program = local_program(ProgramSpec(parts, shares.inputs, shares.outputs, collectives(), (), frozen), rank,
                                    blocked)
            key = _digest(program)
            seconds = self._known['programs'].get(key)
            if seconds is None and (not self._measures or key in self._untimed):
                return None
            if seconds is None:
                speed = self._speed_now()
                calls, overheads = ProgramTimer(program).measure(), call_overhead()
                seconds = [max(call_s - overhead_s, LEAST_SHARE * call_s) * speed
                           for call_s, overhead_s in zip(calls, overheads)]
                self._add('programs', key, seconds)
        except Exception as error:  # of any kind: the sum of the times of operators is known
            with contextlib.suppress(Exception):
                mx.nd.waitall()
            logger.warning('profiles: the program of rank %d cannot be timed on this machine, its time is the sum of '
                           'the times of its operators: %s: %s', rank, type(error).__name__, _last_line(error))
            return None
        return PassSeconds(*seconds)

    def kernel_times(self) -> KernelTimes:
        """Return the times of the benchmark's kernels on the core that all times in the file refer to.

        They are those of the first batch that was timed; later batches are scaled by the speed of the machine then.
        """
        if 'seconds' not in self._known['reference']:
            self._begin_batch()
        return KernelTimes(*self._known['reference']['seconds'])

    def _begin_batch(self) -> TimingBatch:
        if self._batch is None:
            self._batch, self._written_at = TimingBatch(), time.monotonic()
            self._known['reference'].setdefault('seconds', list(self._batch.kernel_times))
        return self._batch

    def _speed_now(self) -> float:
        """Return the speed of this machine in this batch, relative to the core that all times refer to."""
        return self._begin_batch().kernel_times.speed_relative_to(self.kernel_times())

    # -- the file --------------------------------------------------------------------------------------------------

    def _add(self, section: str, key: str, entry: List[float]) -> None:
        self._known[section][key] = self._new[section][key] = entry
        self.measured += 1
        if time.monotonic() - self._written_at > _SAVE_S:
            self.save()

    def save(self) -> None:
        """Write new times, and read times that other processes have written since the last call.

        If the file cannot be written, a warning says so, and this object uses the times all the same.  If other
        programs computed while operators were timed, a warning says so, and nothing is written.
        """
        if self._batch is None:
            return
        problem, self._batch = self._batch.end(), None
        if problem and not self._keeps_busy:
            self._new = {section: {} for section in self._known}
            if not self._warned_busy:
                logger.warning('profiles: this machine is busy: %s: times of operators are too long and are not kept '
                               'in %s: end the other programs, or start mxhybrid plan with --keep-busy-times to keep '
                               'such times', problem, self.path)
            self._warned_busy = True
            return
        self._new['reference']['seconds'] = self._known['reference']['seconds']
        try:
            merged = merge_profiles(self.path, self._new)
        except OSError as error:
            if not self._warned_unwritable:
                logger.warning('profiles: times of operators cannot be kept in %s and will be measured again: %s: '
                               'give another file, or set XDG_CACHE_HOME', self.path, error)
            self._warned_unwritable = True
            return
        # Times that were measured on a busy machine are not in the file, but stay known.
        self._known = {section: {**self._known[section], **merged[section]} for section in merged}
        self._new = {section: {} for section in self._known}


def _last_line(error: Exception) -> str:
    """Return the message of an error: the last line of MXNet's, without the name of the error before it."""
    line, name = str(error).strip().split('\n')[-1], type(error).__name__ + ': '
    return line[len(name):] if line.startswith(name) else line


def _shard_to_time(graph: Graph, operator: Operator, output_shard: OutputShard, needed: bool) -> Optional[ScaledShard]:
    """Return the shard that is timed for a shard: itself; a scaled shard if it is too large and needed; or None."""
    shard = scaled_shard(graph, operator, output_shard, MAX_BYTES)
    return shard if shard is None or needed or shard.output_shard == output_shard else None


def _digest(program: LocalProgram) -> str:
    """Return a digest of a program that does not depend on names."""
    content = json.loads(program.symbol.tojson(remove_amp_cast=False))
    # Compiled operators have addresses as attributes: what they compute follows from their inputs.
    nodes = [(node['op'], sorted(item for item in (node.get('attrs') or {}).items() if item[0] != 'info'),
              node['inputs']) for node in content['nodes']]
    inputs = [program.inputs[name] for name in program.symbol.list_inputs()]
    identity = [nodes, content['heads'], [(value.shape, str(value.dtype), value.has_gradient) for value in inputs]]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:20]
