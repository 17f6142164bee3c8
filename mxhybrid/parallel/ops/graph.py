"""The operators of a network, read from MXNet's symbol of it."""
import ast
import contextlib
import copy
import functools
import hashlib
import io
import itertools
import json
import math
import re
from collections import ChainMap
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ...base.errors import InputError

#: Names of operators that draw random numbers.
_DRAWING = re.compile(r'Dropout$|RNN$|_?(random|sample)_(?!pdf_)|_image_random_|_?shuffle$|_npi_(bernoulli|choice|'
                      r'exponential|gamma|gumbel|laplace|logistic|multinomial|normal|pareto|powerd|random_|rayleigh|'
                      r'shuffle|uniform|weibull)')

#: An output of an operator: the number of the operator, and the index of the output.
Entry = Tuple[int, int]

#: The factors of each dimension of an array, outer ones first; one factor for a dimension that is not cut.
Factors = Tuple[Tuple[int, ...], ...]


class Alignment(NamedTuple):
    """The dimensions of an operator's inputs and outputs of which a shard reads and computes the same range."""

    #: The dimension, by the position of the input, and by the number of the output.
    inputs: Dict[int, int]
    outputs: Dict[int, int]


class Heads(NamedTuple):
    """The heads of attention, or the experts of a mixture, in a dimension of an array."""

    axis: int
    #: The number of heads.
    total: int
    #: Features of a head; 1 if the dimension is heads and nothing else.
    features: int
    #: ``'heads'`` or ``'experts'``.
    kind: str = 'heads'
    #: The number of groups, if the heads are those of each group; these are in another dimension.
    above: int = 1
    #: The number of heads of queries; more than there are heads of keys if several share one.
    queries: int = 0


class Operator:
    """An operator of the graph, a parameter or a data input; `op` is ``'null'`` for parameters and data."""

    def __init__(self, number: int, op: str, name: str, attrs: Dict[str, str], inputs: Sequence[Entry]):
        self.number, self.op, self.name, self.attrs = number, op, name, attrs
        self.inputs = [(int(source), int(output)) for source, output in inputs]
        #: The number of outputs that other operators may read.
        self.outputs = 0
        #: Whether an input or output has factors, see :meth:`Graph.factor`.
        self.has_factors = False
        self._values: Dict[str, Any] = {}

    @property
    def settings(self) -> Dict[str, str]:
        """The attributes that the operator itself reads."""
        return {key: value for key, value in self.attrs.items() if not key.startswith('__')}

    @property
    def draws(self) -> bool:
        """True if it draws random numbers at each call."""
        return bool(_DRAWING.match(self.op)) or self.op == 'LeakyReLU' and self.get('act_type') == 'rrelu'

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of an attribute; `default` if it is missing or None."""
        if key not in self.attrs:
            return default
        if key not in self._values:
            try:
                self._values[key] = ast.literal_eval(self.attrs[key])
            except (ValueError, SyntaxError):
                self._values[key] = self.attrs[key]
        return default if self._values[key] is None else self._values[key]


class Graph:
    """A network as a list of operators, in an order in which they can run, with shapes and types.

    - `data`: the shape of each input, for the joint batch.
    - `dtypes`: the types of inputs and parameters; MXNet infers those that are missing from the others.
    - `names`: the names of blocks in labels, by their prefixes, which differ between networks that a process makes.

    Attributes:

    - `shapes`: the whole shapes, with the factors of a dimension as dimensions of their own.
    - `array_shapes`: the whole shapes of MXNet's arrays.
    - `factors`: the factors of the dimensions of arrays that have some.
    - `alignments`: the alignment of each dimension of an operator's first output, where there are factors.
    - `heads_of`: the dimensions that are heads of attention, or features of all heads, one head after another.
    """

    def __init__(self, symbol: Any, data: Dict[str, Tuple[int, ...]], dtypes: Dict[str, Any],
                 names: Optional[Mapping[str, str]] = None):
        self._names = names or {}
        # Gluon's recurrent layers and cells give their states the prefix of the block whose name scope calls them, too.
        self._prefix = re.compile('(%s)+' % '|'.join(map(re.escape, sorted(self._names, key=len, reverse=True))))
        text = json.loads(symbol.tojson(remove_amp_cast=False))  # by default MXNet removes casts of AMP
        for node in text['nodes']:
            if node.get('subgraphs'):
                raise InputError('parallelize: %s (%s) contains a network of its own, which cannot be split: unroll it'
                                 % (node['name'], node['op']))
        self.operators = [Operator(number, node['op'], node['name'], node.get('attrs') or {},
                                   [tuple(entry[:2]) for entry in node['inputs']])
                          for number, node in enumerate(text['nodes'])]
        self._labels = self._unique_labels()
        self.heads: List[Entry] = [(int(head[0]), int(head[1])) for head in text['heads']]
        self.data = dict(data)
        self.auxiliary = set(symbol.list_auxiliary_states())
        self.shapes: Dict[Entry, Tuple[int, ...]] = {}
        self.dtypes: Dict[Entry, np.dtype] = {}
        self._infer(symbol, dtypes)
        self.array_shapes: Mapping[Entry, Tuple[int, ...]] = dict(self.shapes)
        self.factors: Dict[Entry, Factors] = {}
        self.alignments: Dict[int, List[Optional[Alignment]]] = {}
        self.heads_of: Dict[Entry, List[Heads]] = {}
        self._refuse_scalars()
        #: The numbers of parameters, and of operators that read parameters and constants alone.
        self.fixed = set()
        for operator in self.operators:
            if operator.op == 'null':
                if operator.name not in self.data:
                    self.fixed.add(operator.number)
            elif operator.draws and not operator.inputs:
                raise InputError('parallelize: %s (%s) would draw other numbers on each worker: draw a number for each '
                                 'element of an array, as F.random.uniform_like(x) does, or pass them as an input'
                                 % (operator.name, operator.op))
            elif all(source in self.fixed for source, _ in operator.inputs):
                self.fixed.add(operator.number)

    def with_data(self, symbol: Any, data: Dict[str, Tuple[int, ...]]) -> 'Graph':
        """Return the graph of the same symbol with other shapes of its inputs."""
        return Graph(symbol, data, self.input_dtypes, self._names)

    def factor(self, factors: Dict[Entry, Factors], alignments: Dict[int, List[Optional[Alignment]]]) -> None:
        """Treat the factors of some arrays' dimensions as dimensions, so that each can be split.

        Rules of operators with such inputs or outputs are applied by :class:`~.factored_rule.FactoredRule`.
        """
        self.factors = factors
        for entry, parts in factors.items():
            self.shapes[entry] = tuple(factor for part in parts for factor in part)
        for operator in self.operators:
            entries = operator.inputs + [(operator.number, output) for output in range(operator.outputs)]
            operator.has_factors = any(entry in factors for entry in entries)
            if operator.has_factors and operator.op != 'null':
                self.alignments[operator.number] = alignments[operator.number]

    @functools.cached_property
    def arrays(self) -> 'Graph':
        """A view of the graph without factors."""
        return self.with_arrays({})

    def with_arrays(self, shapes: Mapping[Entry, Tuple[int, ...]]) -> 'Graph':
        """Return a view of the graph without factors, in which some arrays have other shapes."""
        view = copy.copy(self)
        view.__dict__.pop('arrays', None)
        view.shapes = ChainMap(dict(shapes), self.array_shapes)  # type: ignore[assignment, arg-type]
        return view

    def _refuse_scalars(self) -> None:
        """Raise InputError if an operator returns an array of shape (), which MXNet takes for an unknown shape."""
        for (number, _), shape in self.shapes.items():
            operator = self.operators[number]
            if shape == () and operator.op != 'null' and not mx.util.is_np_shape():
                raise InputError('parallelize: %s (%s) returns an array of shape (), which MXNet 1.9.1 takes for an '
                                 'unknown shape: leave it out of the network, or call mx.npx.set_np() before the '
                                 'network is made' % (operator.name, operator.op))

    def _infer(self, symbol: Any, dtypes: Dict[str, Any]) -> None:
        inner = symbol.get_internals()
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # MXNet prints the arguments of an operator that fails
                _, shapes, _ = inner.infer_shape(**self.data)
                _, types, _ = inner.infer_type(**dtypes)
        except Exception as error:  # of any type: MXNet raises Exception itself for shapes that are too large
            raise InputError('parallelize: the network does not take data of shapes %s: %s. Give the shape of every '
                             'input, for the joint batch'
                             % (self.data, str(error).strip().split('\n')[0].rstrip('.'))) from error
        if shapes is None or types is None:
            raise InputError('parallelize: MXNet cannot infer the shapes and types of the network from data=%s: give '
                             'the shape of every input, for the joint batch' % self.data)
        # MXNet lists the visible outputs, operator by operator; numbers in `node_row_ptr` count hidden ones, too.
        output_names = [inner[position].name for position in range(len(shapes))]
        visible_output = 0
        for name, operators in itertools.groupby(self.operators, lambda operator: operator.name):
            # A Block that is called on its own output makes two neighbouring operators of one name.
            same_name = list(operators)
            output_count, rest = divmod(sum(1 for _ in itertools.takewhile(name.__eq__, output_names[visible_output:])),
                                        len(same_name))
            if rest or not output_count or len({operator.op for operator in same_name}) > 1:
                raise InputError('parallelize: two operators of the network are called %s: give each a name' % name)
            for operator in same_name:
                operator.outputs = output_count
                for output in range(output_count):
                    self.shapes[operator.number, output] = tuple(shapes[visible_output])
                    self.dtypes[operator.number, output] = np.dtype(types[visible_output])
                    visible_output += 1
        for operator in self.operators:
            # MXNet itself reports this only when it computes.
            if operator.op.lower() == 'reshape' and \
                    math.prod(self.inputs(operator)[0]) != math.prod(self.shape(operator)):
                raise InputError('parallelize: the network does not take data of shapes %s: %s would reshape an '
                                 'array of shape %s to %s, which has another number of elements. Give the shape of '
                                 'every input, for the joint batch'
                                 % (self.data, operator.name, self.inputs(operator)[0], self.shape(operator)))

    def shape(self, operator: Operator, output: int = 0) -> Tuple[int, ...]:
        """Return the whole shape of an output."""
        return self.shapes[operator.number, output]

    def inputs(self, operator: Operator) -> List[Tuple[int, ...]]:
        """Return the whole shapes of an operator's inputs."""
        return [self.shapes[entry] for entry in operator.inputs]

    def is_parameter(self, number: int) -> bool:
        """Return whether a number is that of a parameter or an auxiliary state."""
        operator = self.operators[number]
        return operator.op == 'null' and operator.name not in self.data

    @property
    def input_dtypes(self) -> Dict[str, np.dtype]:
        """The types of data, parameters and auxiliary states, by name."""
        return {operator.name: self.dtypes[operator.number, 0] for operator in self.operators if operator.op == 'null'}

    @property
    def parameters(self) -> Dict[str, Tuple[int, ...]]:
        """The whole shapes of parameters and auxiliary states, with the factors of dimensions, by name."""
        return {operator.name: self.shape(operator)
                for operator in self.operators if self.is_parameter(operator.number)}

    @property
    def parameter_arrays(self) -> Dict[str, Tuple[int, ...]]:
        """The shapes of the arrays of parameters and auxiliary states, without factors, by name."""
        return {operator.name: self.array_shapes[operator.number, 0]
                for operator in self.operators if self.is_parameter(operator.number)}

    @property
    def tables(self) -> List[int]:
        """The numbers of parameters with row_sparse gradients."""
        return sorted({operator.inputs[1][0] for operator in self.computing
                       if self.has_table(operator) and self.is_parameter(operator.inputs[1][0])})

    def has_table(self, operator: Operator) -> bool:
        """Return whether an operator reads a weight whose gradient is row_sparse: Embedding alone can."""
        return operator.op == 'Embedding' and bool(operator.get('sparse_grad', False))

    @property
    def computing(self) -> List[Operator]:
        """The operators that depend on data."""
        return [operator for operator in self.operators if operator.op != 'null' and operator.number not in self.fixed]

    def label(self, operator: Operator) -> str:
        """Return an operator's name in plans: its short name, with the suffix #2 for the second operator of a name, for
        example of a Block that is called twice.
        """
        return self._labels[operator.number]

    def short_name(self, operator: Operator) -> str:
        """Return an operator's name with the name of its block in labels; several operators may have the same."""
        found = self._prefix.match(operator.name)
        return self._names.get(found[1], '') + operator.name[found.end():] if found else operator.name

    def _unique_labels(self) -> List[str]:
        seen: Dict[str, int] = {}
        labels = []
        for operator in self.operators:
            name = self.short_name(operator)
            seen[name] = seen.get(name, 0) + 1
            labels.append(name if seen[name] == 1 else '%s#%d' % (name, seen[name]))
        return labels

    def digest(self) -> str:
        """Return a digest of operators, attributes, shapes and connections, but not of names."""
        content = [(operator.op, sorted(operator.settings.items()), operator.inputs,
                    operator.name if operator.name in self.data else operator.name in self.auxiliary,
                    [self.shape(operator, output) for output in range(operator.outputs)])
                   for operator in self.operators]
        return hashlib.sha256(json.dumps([content, self.heads]).encode()).hexdigest()[:16]


def merged_shape(shape: Sequence[int], factors: Factors) -> Tuple[int, ...]:
    """Return the shape of an array, or of a part of it, given the lengths of its factors."""
    counts = iter(shape)
    return tuple(math.prod(next(counts) for _ in part) for part in factors)


def geometry_of(graph: Graph, operator: Operator) -> Any:
    """Return a key that is equal for operators with equal attributes, shapes, types and heads."""
    entries = [*operator.inputs, *((operator.number, output) for output in range(operator.outputs))]
    return (operator.op, tuple(sorted(operator.settings.items())),
            len(operator.inputs), tuple(
                (graph.array_shapes[entry], graph.factors.get(entry), graph.dtypes[entry],
                 tuple(heads for heads in graph.heads_of.get(entry, ()) if heads.above > 1)) for entry in entries))
