"""Plans: how every operator of a network is split, as data."""
import copy
import fnmatch
import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import InputError
from ..base.files import write_atomically
from ..base.settings import TablePlan
from .dimensions import Dimensions
from .graph import Graph, Operator
from .rule_table import has_rule, rule_of
from .split import Split, whole_on
from .store_plan import StorePlan, store_plan_from_json

#: Of files; the former one knows no tables and no sums.
_FORMAT, _FORMER = 'mxhybrid.parallel 2', 'mxhybrid.parallel 1'
#: Names in a message.
_SHOWN = 10
#: Rows of a table are summed over all workers.
_ON_ALL = 'its gradient is row_sparse, for which it has to be on all workers'


class Wish(NamedTuple):
    """What a plan wants of an operator: degrees by name of the dimension, addends, and who has its parts."""

    degrees: Mapping[str, int]
    addends: int = 1
    ranks: Optional[Sequence[int]] = None
    #: Whether what cannot be is an error, and not left out.
    strict: bool = False


class Settled(NamedTuple):
    """A plan for a network and a number of ranks."""

    splits: Dict[int, Split]
    #: What is otherwise than asked, by operator, and by the table that a plan leaves out.
    notes: Dict[int, str]
    #: How rows travel, by the name of the parameter.
    tables: Mapping[str, TablePlan] = {}


class Plan:
    """How operators are split.  This one is pure data parallelism; others say more by :meth:`wish`."""

    name = 'data parallel'
    #: How rows of tables travel, and what sums dense weights.
    store = StorePlan()
    #: Whether it is a list of all that there is in a network, and not a rule.
    lists_all = False

    def with_store(self, store: StorePlan) -> 'Plan':
        """The same, with other choices for the store."""
        found = copy.copy(self)
        found.store = store
        return found

    def wish(self, graph: Graph, dimensions: Dimensions, one: Operator, ranks: int) -> Optional[Wish]:
        """What is wanted of an operator; None where it follows what it reads, or has its samples split."""
        return None

    def check(self, ranks: int) -> None:
        """InputError where it is for another number of ranks."""

    def follows(self, one: Operator) -> bool:
        """Whether an operator without a wish is split as what it reads; else by samples."""
        return False

    def settle(self, graph: Graph, dimensions: Dimensions, ranks: int) -> Settled:
        """The split of each operator."""
        self.check(ranks)
        splits: Dict[int, Split] = {}
        notes: Dict[int, str] = {}
        for one in graph.computing:
            wish = self.wish(graph, dimensions, one, ranks)
            if wish is not None:
                split, note = _fit(graph, dimensions, one, wish, ranks)
            else:
                split, note = self.default_split(graph, dimensions, one, ranks, splits)
            splits[one.number] = split
            if note:
                notes[one.number] = note
        return self._with_tables(Settled(splits, notes), graph)

    def _with_tables(self, settled: Settled, graph: Graph) -> Settled:
        tables = self.store.by_name(graph)
        left_out = self.store.left_out(graph) if self.lists_all or tables else []
        notes = dict.fromkeys(left_out, 'a table of which the plan says nothing: it goes as settings say, or is '
                                        'measured while training')
        return Settled(settled.splits, {**settled.notes, **notes}, tables)

    def default_split(self, graph: Graph, dimensions: Dimensions, one: Operator, ranks: int, splits: Dict[int, Split]
                      ) -> Tuple[Split, str]:
        """The split of an operator without a wish, of those of what it reads; and what there is to say of it."""
        samples = dimensions.samples((one.number, 0))
        shape, limits = graph.shape(one), rule_of(one).limits(graph, one)
        candidates = []
        if self.follows(one):
            producer = next((splits[source] for source, _ in one.inputs if source in splits
                             and len(splits[source].degrees) == len(shape)), None)
            if producer is not None and producer.addends == producer.copies == 1:
                followed = rule_of(one).following(graph, one, producer.degrees)
                if followed is not None:
                    candidates.append(Split(followed[0], producer.ranks, followed[1]))
        if samples is not None:
            degree = min(ranks, limits[samples])
            candidates.append(Split([degree if at == samples else 1 for at in range(len(shape))],
                                    spread(degree, ranks)))
        if not candidates:
            why = 'samples cannot be split' if has_rule(one) else 'no rule for %s' % one.op
            if rule_of(one).alone:
                return Split((1,) * len(shape), (0,)), 'on one rank: ' + why
            return whole_on(len(shape), range(ranks)), 'whole on every rank: ' + why
        found = max(candidates, key=lambda split: len(split.ranks))
        if graph.has_table(one) and len(found.ranks) < ranks:
            return whole_on(len(shape), range(ranks)), 'whole on every rank: ' + _ON_ALL
        return found, ''

    def as_json(self) -> Dict[str, Any]:
        """What :func:`from_json` reads."""
        return {**self._layers_as_json(), **self.store.as_json()}

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'data_parallel'}

    def __repr__(self) -> str:
        return '<plan: %s>' % self.name


def _are_whole(values: Any) -> bool:
    """Whether it is a sequence of whole numbers."""
    return isinstance(values, Sequence) and not isinstance(values, (str, bytes)) and all(
        isinstance(one, int) and not isinstance(one, bool) for one in values)


def spread(count: int, ranks: int) -> List[int]:
    """So many of all ranks, as evenly as can be; each sample of few is given to these, too."""
    return [-(-at * ranks // count) for at in range(count)]


def _fit(graph: Graph, dimensions: Dimensions, one: Operator, wish: Wish, ranks: int) -> Tuple[Split, str]:
    """The split that comes nearest to a wish; InputError where the wish is strict."""
    names, rule = dimensions.names(one), rule_of(one)
    limits, problems = rule.limits(graph, one), []
    for name in wish.degrees:
        if name not in names:
            problems.append('%s has no %s, but %s' % (graph.label(one), name, ', '.join(names)))
    degrees = []
    for name, limit in zip(names, limits):
        degree = int(wish.degrees.get(name, 1))
        if degree < 1:
            raise InputError('plan: %s is to be split %s=%r: give a whole number of at least 1'
                             % (graph.label(one), name, degree))
        if degree > limit:
            problems.append('%s can be cut in %d, not %d' % (name, limit, degree))
        degrees.append(min(degree, limit))
    most = rule.addends(graph, one)
    if wish.addends > most:
        problems.append('it sums over %d, not %d, that can be cut' % (most, wish.addends))
    addends = min(wish.addends, most)
    count = addends
    for degree in degrees:
        count *= degree
    if wish.ranks is None:
        if count > ranks:
            problems.append('it has %d parts, but there are %d ranks' % (count, ranks))
            degrees, addends, count = [1] * len(degrees), 1, 1
        chosen = spread(count, ranks)
    else:
        chosen = [int(rank) for rank in wish.ranks]
        wrong = [rank for rank in chosen if not 0 <= rank < ranks]
        if wrong or len(set(chosen)) != len(chosen):
            raise InputError('plan: %s is on ranks %s: give different ones of 0 to %d'
                             % (graph.label(one), chosen, ranks - 1))
        if len(chosen) < count:
            problems.append('it has %d parts, but %d ranks' % (count, len(chosen)))
            degrees, addends, count = [1] * len(degrees), 1, 1
        elif len(chosen) > count:
            problems.append('it has %d parts for %d ranks' % (count, len(chosen)))
        chosen = chosen[:count]
    lacks_ranks = graph.has_table(one) and len(chosen) < ranks
    if lacks_ranks:
        problems.append(_ON_ALL)
    if problems and wish.strict:
        raise InputError('plan: %s (%s of shape %s) cannot be split so: %s'
                         % (graph.label(one), one.op, graph.shape(one), '; '.join(problems)))
    found = whole_on(len(degrees), range(ranks)) if lacks_ranks else Split(degrees, chosen, addends)
    return found, '; '.join(problems)


class Grid(Plan):
    """A grid of ranks, as Gholami et al. have it ("Integrated Model, Batch, and Domain Parallelism in Training Neural
    Networks", SPAA 2018): see :func:`grid`.
    """

    def __init__(self, model: int, batch: int, domain: Tuple[int, ...]):
        self.model, self.batch, self.domain = model, batch, domain
        self.name = 'grid of ' + ' x '.join('%s %s' % (what, value) for what, value in (
            ('batch', batch), ('model', model), ('domain', ' x '.join(map(str, domain)))) if value not in (1, ''))

    @property
    def ranks(self) -> int:
        """How many ranks it is for."""
        count = self.model * self.batch
        for degree in self.domain:
            count *= degree
        return count

    def check(self, ranks: int) -> None:
        """As :meth:`Plan.check`."""
        if self.ranks != ranks:
            raise InputError('plan: %s is for %d workers, but the job has %d: choose factors whose product is %d'
                             % (self.name, self.ranks, ranks, ranks))

    def follows(self, one: Operator) -> bool:
        """As :meth:`Plan.follows`."""
        return True

    def wish(self, graph: Graph, dimensions: Dimensions, one: Operator, ranks: int) -> Optional[Wish]:
        """As :meth:`Plan.wish`."""
        if one.op == 'FullyConnected':
            model = ranks // self.batch
            return Wish({'samples': self.batch, 'channels': model})
        if one.op == 'Convolution' and self.domain:
            names = [name for name in dimensions.names(one) if name not in ('samples', 'channels')]
            degrees = dict(zip(names, self.domain))
            degrees['samples'] = self.batch
            if self.model > 1:
                degrees['channels'] = self.model
            return Wish(degrees)
        return None

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'grid', 'model': self.model, 'batch': self.batch, 'domain': list(self.domain)}


class OneWeirdTrick(Plan):
    """See :func:`one_weird_trick`."""

    name = 'one weird trick'

    def follows(self, one: Operator) -> bool:
        """As :meth:`Plan.follows`."""
        return True

    def wish(self, graph: Graph, dimensions: Dimensions, one: Operator, ranks: int) -> Optional[Wish]:
        """As :meth:`Plan.wish`."""
        return Wish({'channels': ranks}) if one.op == 'FullyConnected' else None

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'one_weird_trick'}


class Layers(Plan):
    """Operators by patterns of their names; the first pattern that fits counts.  See :func:`layers`."""

    def __init__(self, by_pattern: Mapping[str, Mapping[str, Any]], strict: bool = True):
        self.name, self._strict = 'by layers', strict
        for pattern, value in by_pattern.items():
            if not isinstance(value, Mapping):
                raise InputError('plan: %r is %r: give degrees by name of the dimension, {"channels": 4}'
                                 % (pattern, value))
        self._by_pattern = {pattern: dict(value) for pattern, value in by_pattern.items()}
        for pattern, value in self._by_pattern.items():
            for key, one in value.items():
                if key == 'ranks':
                    if not _are_whole(one):
                        raise InputError('plan: %r has ranks=%r: give a list of ranks' % (pattern, one))
                elif not isinstance(one, int) or isinstance(one, bool) or one < 1:
                    raise InputError('plan: %r has %s=%r: give a whole number of at least 1' % (pattern, key, one))

    def follows(self, one: Operator) -> bool:
        """As :meth:`Plan.follows`."""
        return True

    def settle(self, graph: Graph, dimensions: Dimensions, ranks: int) -> Settled:
        """As :meth:`Plan.settle`; InputError for a pattern that fits nothing."""
        for pattern in self._by_pattern:
            if not any(_fits(graph, one, pattern) for one in graph.computing):
                labels = [graph.label(one) for one in graph.computing]
                raise InputError('plan: %r fits no operator: give the name of one, or a pattern; there are %s%s' % (
                    pattern, ', '.join(labels[:_SHOWN]), ', ...' * (len(labels) > _SHOWN)))
        return super().settle(graph, dimensions, ranks)

    def wish(self, graph: Graph, dimensions: Dimensions, one: Operator, ranks: int) -> Optional[Wish]:
        """As :meth:`Plan.wish`."""
        for pattern, value in self._by_pattern.items():
            if _fits(graph, one, pattern):
                degrees = {key: degree for key, degree in value.items() if key not in ('ranks', 'addends')}
                return Wish(degrees, value.get('addends', 1), value.get('ranks'), self._strict)
        return None

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'layers', 'layers': self._by_pattern}


def _fits(graph: Graph, one: Operator, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (graph.label(one), graph.short_name(one)))


class Explicit(Plan):
    """The split of every operator of one network on so many workers, as a file has it.

    Parameters
    ----------
    splits : dict of str to Split
        By :meth:`mxhybrid.parallel.graph.Graph.label`.
    model : str
        Digest of the network.
    workers : int
    cluster : str, optional
        Digest of the cluster that it was found for; training does not ask for it.
    store : StorePlan, optional
        How rows of tables travel, and what sums dense weights.
    """

    name = 'explicit'
    lists_all = True

    def __init__(self, splits: Mapping[str, Split], model: str, workers: int, cluster: Optional[str] = None,
                 store: StorePlan = StorePlan()):  # noqa: B008
        self.splits, self.model, self.workers, self.cluster = dict(splits), model, workers, cluster
        self.store = store

    def settle(self, graph: Graph, dimensions: Dimensions, ranks: int) -> Settled:
        """As :meth:`Plan.settle`."""
        if ranks != self.workers:
            raise InputError('plan: it is for %d workers, but the job has %d: make another one' % (self.workers, ranks))
        if graph.digest() != self.model:
            raise InputError('plan: it is for another network, or other shapes of data (digest %s, not %s): make '
                             'another one' % (self.model, graph.digest()))
        found = {}
        for one in graph.computing:
            split = self.splits.get(graph.label(one))
            if split is None:
                raise InputError('plan: it says nothing of %s' % graph.label(one))
            self._check(graph, one, split, ranks)
            found[one.number] = split
        return self._with_tables(Settled(found, {}), graph)

    @staticmethod
    def _check(graph: Graph, one: Operator, split: Split, ranks: int) -> None:
        rule = rule_of(one)
        limits = rule.limits(graph, one)
        if (len(split.degrees) != len(limits) or any(degree > limit for degree, limit in zip(split.degrees, limits))
                or split.addends > rule.addends(graph, one) or split.copies > 1 and (rule.alone or split.addends > 1)
                or not all(0 <= rank < ranks for rank in split.ranks)):
            raise InputError('plan: %s cannot be split as %r: at most %s, %d addends, on ranks 0 to %d'
                             % (graph.label(one), split, limits, rule.addends(graph, one), ranks - 1))
        if graph.has_table(one) and len(split.ranks) < ranks:
            raise InputError('plan: %s cannot be split as %r: %s' % (graph.label(one), split, _ON_ALL))

    def _layers_as_json(self) -> Dict[str, Any]:
        operators = {label: {'degrees': list(split.degrees), 'addends': split.addends, 'copies': split.copies,
                             'ranks': list(split.ranks)} for label, split in self.splits.items()}
        return {'plan': 'explicit', 'model': self.model, 'workers': self.workers, 'cluster': self.cluster,
                'operators': operators}


def data_parallel() -> Plan:
    """Every operator has its samples split over all workers, as without a plan."""
    return Plan()


def grid(model: int = 1, batch: int = 1, domain: Sequence[int] = ()) -> Plan:
    """A grid of workers, whose factors multiply to their number (Gholami et al., SPAA 2018).

    Dense layers are split over ``batch`` ranges of samples and all other factors together of outputs (their "1.5D"
    product), convolutions over samples, or with `domain` over ``batch`` ranges of samples and those of height and
    width.

    Parameters
    ----------
    model : int, optional
        Ranges of outputs of dense layers; with `domain`, of output channels of convolutions, too.
    batch : int, optional
        Ranges of samples.
    domain : sequence of int, optional
        Ranges of height, or of height and width, of images.

    Raises
    ------
    InputError
        A factor that is no whole number of at least 1; once it is used, factors for another number of workers.
    """
    if not _are_whole(domain):
        raise InputError('grid: domain=%r: give a list of whole numbers of at least 1' % (domain,))
    for what, value in [('model', model), ('batch', batch)] + [('domain', one) for one in domain]:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError('grid: %s=%r: give whole numbers of at least 1' % (what, value))
    return Grid(model, batch, tuple(domain))


def one_weird_trick() -> Plan:
    """Samples for all but dense layers, outputs for these (Krizhevsky, "One weird trick for parallelizing convolutional
    neural networks", 2014).
    """
    return OneWeirdTrick()


def layers(by_pattern: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Operators by patterns of their names, as of a dict that :func:`mxhybrid.parallelize` is given.

    Parameters
    ----------
    by_pattern : dict of str to dict
        For names that match the pattern (shell wildcards, the first counts): degrees by name of the dimension
        (``samples``, ``channels``, ``height``, ``width``, ``length``), ``addends`` (ranges of what a convolution, a
        dense layer or an embedding sums over), and ``ranks``, a list.  Operators that match none follow what they
        read.

    Raises
    ------
    InputError
        A value that is none; once it is used, what an operator cannot do.
    """
    return Layers(by_pattern)


def from_json(value: Mapping[str, Any]) -> Plan:
    """The plan that :meth:`Plan.as_json` wrote; InputError for anything else."""
    return _from_json(value).with_store(store_plan_from_json(value))


def _from_json(value: Mapping[str, Any]) -> Plan:
    kind = value.get('plan') if isinstance(value, Mapping) else None
    if kind == 'data_parallel':
        return Plan()
    if kind == 'one_weird_trick':
        return OneWeirdTrick()
    if kind == 'grid':
        return grid(value.get('model', 1), value.get('batch', 1), value.get('domain', ()))
    if kind == 'layers' and isinstance(value.get('layers'), Mapping):
        return Layers(value['layers'])
    if kind == 'explicit':
        return _explicit(value)
    raise InputError("plan: %r is none: give 'plan' as 'data_parallel', 'one_weird_trick', 'grid' or 'layers'"
                     % (value,))


def _explicit(value: Mapping[str, Any]) -> Plan:
    try:
        splits = {}
        for label, one in value['operators'].items():
            degrees, ranks = [[int(number) for number in one[key]] for key in ('degrees', 'ranks')]
            addends, copies = int(one.get('addends', 1)), int(one.get('copies', 1))
            if min(degrees + [addends, copies, 1]) < 1 or len(set(ranks)) != len(ranks) or len(ranks) != int(
                    np.prod(degrees)) * addends * copies:
                raise ValueError('%s has %s' % (label, one))
            splits[label] = Split(degrees, ranks, addends, copies)
        cluster = value.get('cluster')
        return Explicit(splits, str(value['model']), int(value['workers']), None if cluster is None else str(cluster))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError('plan: no explicit plan: %s' % error) from error


def as_plan(plan: Any) -> Plan:
    """What a user gave as a plan: a plan, a dict by pattern, or the name of a file."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Mapping):
        return from_json(plan) if isinstance(plan.get('plan'), str) else Layers(plan)
    if isinstance(plan, str):
        return load(plan)
    raise InputError('parallelize: plan=%r is none: give one of mxhybrid.parallel, a dict by names of layers, or the '
                     'name of a JSON file' % (plan,))


def save(path: str, plan: Plan) -> None:
    """Write a plan to a file."""
    text = json.dumps({'format': _FORMAT, **plan.as_json()}, indent=1)
    write_atomically(path, text.encode())


def load(path: str) -> Plan:
    """Read a plan; InputError for a file that is none."""
    try:
        with open(path, encoding='utf-8') as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError('plan: cannot read %s: %s' % (path, error)) from error
    given = value.get('format') if isinstance(value, dict) else None
    if given not in (_FORMAT, _FORMER):
        raise InputError('plan: %s has format %r, but this version reads %r and %r: make it anew'
                         % (path, given, _FORMER, _FORMAT))
    later = sorted({'tables', 'dense'} & set(value)) if given == _FORMER else []
    if later:
        raise InputError('plan: %s has %s, which format %r does not know: make it %r'
                         % (path, later[0], _FORMER, _FORMAT))
    return from_json(value)
