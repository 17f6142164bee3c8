"""Times of operators' parts and of whole programs on this machine, measured once and kept in a file."""
import contextlib
import hashlib
import json
import os
import time
import weakref
from typing import Any, Container, Dict, Iterable, List, Mapping, Optional, Set, Tuple

import mxnet as mx
from tqdm import tqdm

from ...base.errors import InputError
from ...base.log import get_logger
from ...base.text import size_text
from ...parallel.ops.collective_ops import COMPOSED
from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.ops.rule import OperatorPart
from ...parallel.runtime.rank_program import Parts
from ...parallel.sharding.box import Box
from ...parallel.sharding.split import PartPlace
from .core_benchmark import KernelTimes
from .local_program import LocalProgram, local_program
from .profile_cache import default_path, merge_profiles, read_profiles
from .profile_key import ProfileKeys
from .roofline import OperatorTime, RooflineEstimator, Work, roofline_seconds, work_of
from .scaled_shard import ScaledShard, scaled_shard
from .timer import PassSeconds, ProgramTimer, time_shard
from .timing_batch import TimingBatch

logger = get_logger(__name__)

#: Bytes that what is timed may read and write: with gradients and what MXNet computes them in, it takes some six times
#: as much memory, of which some stays.  Of larger ones a piece is timed, if they are those of data parallelism.
MOST_BYTES = 1 << 28

#: Seconds after which new times are written, so that little is lost with a process, and which a batch of them takes.
_SAVE_S = 20.0


class OperatorProfiler:
    """Times of this machine.

    Parts are timed as they run in a program: several of them in one call, in CPU time where MXNet computes with one
    thread.  Each is measured when it is asked for first, which takes 0.2 s, or as many as :meth:`measure` is told.

    Parameters
    ----------
    path : str or os.PathLike, optional
        The file that keeps them, by default one in ``~/.cache/mxhybrid`` for this MXNet, CPU and number of threads.
        Processes may share it.
    measure : bool, optional
        Whether what the file lacks is measured; else it is estimated.
    composed : dict, optional
        What operators are several where they are split, see :mod:`mxhybrid.parallel.ops.collective_ops`.
    keep_busy : bool, optional
        Whether times are kept that were measured while other programs computed, which makes them too long; by default
        they count for this object only, and a warning says so.

    Raises
    ------
    InputError
        A file that is none, or was measured elsewhere, or no name of one.
    """

    def __init__(self, path: Any = None, measure: bool = True, composed: Optional[Mapping[str, Any]] = None,
                 keep_busy: bool = False):
        if not isinstance(path, (str, os.PathLike, type(None))):
            raise InputError('profiles=%r: give the name of a file' % (path,))
        self.path: str = default_path() if path is None else os.fspath(path)
        self._measures, self._keeps_busy = measure, keep_busy
        self._composed = dict(COMPOSED[True] if composed is None else composed)
        self._kept = read_profiles(self.path)
        self._new: Dict[str, Dict[str, List[float]]] = {section: {} for section in self._kept}
        #: Those of the file, for estimates.
        self._timed = RooflineEstimator()
        self._written = time.monotonic()
        self._told = self._told_busy = False
        #: What is timed now, if anything is.
        self._batch: Optional[TimingBatch] = None
        #: Keys of parts that could not be timed: they are estimated.
        self._untimed: Set[str] = set()
        #: Operators of which that was said.
        self._said: Set[str] = set()
        self._keys: 'weakref.WeakKeyDictionary[Graph, Dict[Any, ProfileKeys]]' = weakref.WeakKeyDictionary()
        #: Programs and parts that were measured for this object, not found in the file.
        self.measured = 0

    # -- parts -----------------------------------------------------------------------------------------------------

    def shard_seconds(self, graph: Graph, one: Operator, place: PartPlace, flows: Any = (), frozen: Any = (),
                      measure: bool = True, needed: bool = False, part: Optional[OperatorPart] = None) -> PassSeconds:
        """What a part of an operator takes.

        Parameters
        ----------
        graph : Graph
        one : Operator
            Of the graph, one of ``graph.computing``.
        place : PartPlace
            The box of its first output that the part makes.
        flows, frozen : set of str, optional
            Inputs of the graph through which gradients go back, and parameters that have none.
        measure : bool, optional
            Whether it is measured if it is not known, unless this object only estimates, or it is too large.
        needed : bool, optional
            Whether a piece of it is measured where it is too large.
        part : OperatorPart, optional
            What the operator's rule says of the place, if that is known.

        Returns
        -------
        PassSeconds
            Forward and backward, in seconds of a core.
        """
        keys, part = self.keys(graph, flows, frozen), part or rule_of(one).part(graph, one, place)
        estimates, work = not (self._measures and measure), work_of(graph, one, part)
        if estimates and not self._estimator_of_times().has(one.op, work):
            return self._estimate(one.op, work, keys.has_backward(one))  # it has no time, whatever its key
        key = keys.key(one, place, part)
        kept = self._kept['parts'].get(key)
        if kept is not None:
            return PassSeconds(kept[0], kept[1])
        piece = None if estimates or key in self._untimed else _shard_to_time(graph, one, place, needed)
        if piece is None:
            return self._estimate(one.op, work, keys.has_backward(one))
        speed = self._speed_now()
        try:
            forward, backward = time_shard(keys.program(one, piece.place, place))
            backward += sum(time_shard(each).forward for each in keys.gradient_sums(one, piece.place))
        except Exception as error:  # of any kind: a search goes on without the time
            self._untimed.add(key)
            self._say_untimed(graph, one, error)
            return self._estimate(one.op, work, keys.has_backward(one))
        times = roofline_seconds(work) / roofline_seconds(piece.work) if piece.place != place else 1.0
        found = PassSeconds(forward * speed * times, backward * speed * times)
        self._keep('parts', key, [*found, *work])
        return found

    def _say_untimed(self, graph: Graph, one: Operator, error: Exception) -> None:
        """Warn once of each operator that cannot be timed, and drop what MXNet has still to say of it."""
        with contextlib.suppress(Exception):
            mx.nd.waitall()  # an operator that failed raises its error here, too
        text = '%s (%s of shape %s, %s)' % (graph.label(one), one.op, graph.shape(one), graph.dtypes[one.number, 0])
        if text not in self._said:
            self._said.add(text)
            logger.warning('profiles: %s cannot be timed on this machine, and is estimated by other operators: %s: %s',
                           text, type(error).__name__, _last_line(error))

    def measure(self, graph: Graph, wanted: Iterable[Tuple[Operator, PartPlace]], flows: Any = (), frozen: Any = (),
                needed: Container[Tuple[int, PartPlace]] = ()) -> int:
        """Measure what is not known yet of some parts, with a progress bar on a terminal, and write it; how many.

        Parts that are too large are left to estimates, but for those `needed`, by their operators' numbers.
        """
        keys = self.keys(graph, flows, frozen)
        missing = {key: (one, place, (one.number, place) in needed) for one, place in wanted
                   for key in [keys.key(one, place)] if key not in self._kept['parts'] and key not in self._untimed}
        large = [key for key, pair in missing.items() if self._measures and _shard_to_time(graph, *pair) is None]
        for key in large:
            del missing[key]
        if large:
            logger.warning('profiles: %d parts of operators read and write more than %s: they are not timed, but '
                           'estimated by smaller ones', len(large), size_text(MOST_BYTES))
        for one, place, is_needed in tqdm(missing.values(), desc='operators', unit=' parts',
                                          disable=None if missing else True):
            self.shard_seconds(graph, one, place, flows, frozen, needed=is_needed)
        self.save()
        return len(missing)

    def keys(self, graph: Graph, flows: Any = (), frozen: Any = ()) -> ProfileKeys:
        """Of the parts of a graph."""
        known = self._keys.setdefault(graph, {})
        which: Tuple[Any, Any] = frozenset(flows), frozenset(frozen)
        if which not in known:
            known[which] = ProfileKeys(graph, self._composed, *which)
        return known[which]

    def _estimate(self, op: str, work: Work, has_backward: bool) -> PassSeconds:
        forward, backward = self._estimator_of_times().estimate(op, work)
        return PassSeconds(forward, backward if has_backward else 0.0)

    def _estimator_of_times(self) -> RooflineEstimator:
        if len(self._timed) != len(self._kept['parts']):
            self._timed = RooflineEstimator(OperatorTime(key.split()[0], Work(entry[2], entry[3]), entry[0], entry[1])
                                            for key, entry in self._kept['parts'].items())
        return self._timed

    # -- programs --------------------------------------------------------------------------------------------------

    def program_seconds(self, parts: Parts, rank: int, inputs: Dict[Entry, Dict[int, Box]],
                        outputs: Dict[Entry, List[Dict[int, Box]]], flows: Any = (), frozen: Any = ()) -> PassSeconds:
        """What a rank's whole program takes but for its exchanges; the parameters are those of
        :class:`mxhybrid.parallel.runtime.rank_program.Program`.
        """
        made = local_program(parts, rank, inputs, outputs, self._composed, flows, frozen)
        key = _digest(made)
        kept = self._kept['programs'].get(key)
        if kept is None:
            speed = self._speed_now()
            kept = [seconds * speed for seconds in ProgramTimer(made).measure()]
            self._keep('programs', key, kept)
        return PassSeconds(*kept)

    def scale(self, parts: Parts, rank: int, inputs: Dict[Entry, Dict[int, Box]],
              outputs: Dict[Entry, List[Dict[int, Box]]], flows: Any = (), frozen: Any = ()) -> float:
        """What a rank's program takes, beside the sum of its parts."""
        whole = self.program_seconds(parts, rank, inputs, outputs, flows, frozen).total
        return whole / sum(self.shard_seconds(parts.graph, one, parts.places[one.number][rank], flows, frozen).total
                           for one in parts.graph.computing if rank in parts.places[one.number])

    def kernel_times(self) -> KernelTimes:
        """Return the seconds of the reference pieces on the core that all times are those of.

        They are those of the first batch that was timed: later ones are made up for how fast the machine is then.
        """
        if 'seconds' not in self._kept['reference']:
            self._begin_batch()
        return KernelTimes(*self._kept['reference']['seconds'])

    def _begin_batch(self) -> TimingBatch:
        if self._batch is None:
            self._batch, self._written = TimingBatch(), time.monotonic()
            self._kept['reference'].setdefault('seconds', list(self._batch.kernel_times))
        return self._batch

    def _speed_now(self) -> float:
        """Return how fast this machine is in this batch, beside the core that all times are those of."""
        return self._begin_batch().kernel_times.speed_relative_to(self.kernel_times())

    # -- the file --------------------------------------------------------------------------------------------------

    def _keep(self, section: str, key: str, entry: List[float]) -> None:
        self._kept[section][key] = self._new[section][key] = entry
        self.measured += 1
        if time.monotonic() - self._written > _SAVE_S:
            self.save()

    def save(self) -> None:
        """Write what is new, beside what other processes have written meanwhile.

        A warning says so where it cannot be written, since the times themselves are there, and where other programs
        computed while operators were timed: then nothing is written.
        """
        if self._batch is None:
            return
        problem, self._batch = self._batch.end(), None
        if problem and not self._keeps_busy:
            self._new = {section: {} for section in self._kept}
            if not self._told_busy:
                logger.warning('profiles: this machine is busy: %s: times of operators are too long, and not kept in '
                               '%s: end other programs; where there are always some, mxhybrid plan keeps the times '
                               'with --keep-busy-times', problem, self.path)
            self._told_busy = True
            return
        self._new['reference']['seconds'] = self._kept['reference']['seconds']
        try:
            merged = merge_profiles(self.path, self._new)
        except OSError as error:
            if not self._told:
                logger.warning('profiles: times of operators cannot be kept in %s, and will be measured again: %s; '
                               'give another file, or XDG_CACHE_HOME', self.path, error)
            self._told = True
            return
        # Beside what was measured on a busy machine.
        self._kept = {section: {**self._kept[section], **merged[section]} for section in merged}
        self._new = {section: {} for section in self._kept}


def _last_line(error: Exception) -> str:
    """Return what an error says: the last line of MXNet's, which also begins with its name."""
    line, name = str(error).strip().split('\n')[-1], type(error).__name__ + ': '
    return line[len(name):] if line.startswith(name) else line


def _shard_to_time(graph: Graph, one: Operator, place: PartPlace, needed: bool) -> Optional[ScaledShard]:
    """What of a part is timed: all of it, a piece where that is too large and needed, or nothing."""
    found = scaled_shard(graph, one, place, MOST_BYTES)
    return found if found is None or needed or found.place == place else None


def _digest(program: LocalProgram) -> str:
    """Tells programs apart, but not by names."""
    text = json.loads(program.symbol.tojson(remove_amp_cast=False))
    # Compiled operators have addresses as attributes: what they are follows from what they read.
    nodes = [(node['op'], sorted(item for item in (node.get('attrs') or {}).items() if item[0] != 'info'),
              node['inputs']) for node in text['nodes']]
    told = [nodes, text['heads'], [(one.shape, str(one.dtype), one.has_gradient) for one in
                                   (program.inputs[name] for name in program.symbol.list_inputs())]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20]
