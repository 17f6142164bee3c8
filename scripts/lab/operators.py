"""Write docs/operators.md: the dimensions that can be split of each operator of MXNet that has a gradient.

MXNet's registry says which operators there are; its gradient pass says which of them have a gradient.  The descriptions
are those of the rules' classes.  ``tests/unit/lab/test_operators.py`` compares the page with the rules.
"""
import argparse
import collections
import ctypes
import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

import mxnet as mx
from mxnet.base import _LIB, MXNetError, c_str, check_call, mx_uint, py_str

import mxhybrid.parallel.rules  # noqa: F401
from mxhybrid.parallel.ops.registry import rules
from mxhybrid.parallel.ops.rule import OnOneRank, Rule

PAGE = Path(__file__).resolve().parents[2] / 'docs' / 'operators.md'

#: Operators that are no part of a network that `parallelize` takes: gradients, loops, other programs, updates of
#: weights, quantized networks, arrays of graphs.  MXNet ends the process if some of them are made without their
#: program.
_LEFT_OUT = re.compile(r'.*backward|_CustomFunction|_NDArray|_Native|_CachedOp|_FusedOp|_TensorRT|_(foreach|while_loop|'
                       r'cond)$|_sg_|_contrib_(dgl|quantize|dequantize|requantize|calibrate)|.*_update(_phase\d)?$|'
                       r'reset_arrays|_NoGradient|multi_|preloaded_multi_')

#: Attributes that MXNet requires without declaring it, or that are of a particular form.
_ATTRIBUTES: Dict[str, Dict[str, str]] = {'Pooling': {'kernel': '(2, 2)'}, 'Pooling_v1': {'kernel': '(2, 2)'},
                                          'sort': {'axis': '0'}}

#: Operators whose gradient the pass does not find without a program of the user, or because of a defect of MXNet.
_WITH_GRADIENT = ('Custom', '_npi_copysign_scalar', '_npi_rcopysign_scalar')

_TEXT = '''# Operators

`scripts/operators` writes this page from the rules in `mxhybrid/parallel/rules/` and from the operators that MXNet
%(version)s has registered. It covers all %(count)d operators that have a gradient and may be part of a network, by
their names in a graph (`op` in `symbol.tojson()`), with other names in parentheses, unless they only lack the first
underscore. [Plans](plans.md#operators) explains what a split is, and the limits that hold for all operators.

- **Partial sums**: the operator can also be split over a dimension over which it sums. Each rank then computes a
  partial sum of the output.
- **Together**: ranks exchange statistics or parts of a sum inside of the operator. So it can be split over a dimension
  although each element of the output needs the whole dimension.
- Unless a description says otherwise, its dimensions are those of the first output.

## Operators with a rule

| operators | how they are split | also |
|---|---|---|
%(ruled)s

## Operators that one rank computes for all

They are losses, or add one, or run a program of the user, and have no rule: each copy would return the whole gradient.
%(alone)s.

## Operators computed whole

These %(whole_count)d operators have no rule. Every worker that reads one computes it for the joint batch, unless it
draws random numbers: then one worker draws for all. `print(net)` names each of them that a network has, with its
position and the size of the inputs that are gathered for it.

%(whole)s
'''


#: Operators of MXNet's NumPy interface, of which hardly one has a rule, have names that begin like this.
_NUMPY = '_np'
#: Groups of operators without a rule, by patterns of their names; the first pattern that fits counts.
_GROUPS = {'Operators of MXNet\'s NumPy interface': _NUMPY, 'Matrices': '_linalg', 'Images and augmentation': '_image',
           'Densities of distributions': '_random_pdf', 'Former versions, which Gluon does not call': r'\w+_v1$',
           'Others': ''}


class Registered(NamedTuple):
    """An operator of MXNet: its other names, and whether its gradient is always zero."""

    aliases: Tuple[str, ...]
    is_zero: bool


def _all_names() -> List[str]:
    count, names = mx_uint(), ctypes.POINTER(ctypes.c_char_p)()
    check_call(_LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(names)))
    return sorted(py_str(names[at]) for at in range(count.value))


def _names_of_operators() -> Dict[str, List[str]]:
    """Return all names of each operator, by its name in a graph."""
    names = collections.defaultdict(list)
    for name in _all_names():
        names[_signature(_handle(name))[0]].append(name)
    return names


def _handle(name: str) -> Any:
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(c_str(name), ctypes.byref(handle)))
    return handle


def _signature(handle: Any) -> Tuple[str, Dict[str, str], str]:
    """Return an operator's name, the types of its arguments, and the attribute that counts its inputs, if any."""
    name, text, counter, returns = (ctypes.c_char_p() for _ in range(4))
    count = mx_uint()
    names, types, texts = (ctypes.POINTER(ctypes.c_char_p)() for _ in range(3))
    check_call(_LIB.MXSymbolGetAtomicSymbolInfo(handle, *map(ctypes.byref, (
        name, text, count, names, types, texts, counter, returns))))
    arguments = {py_str(names[at]): py_str(types[at]) for at in range(count.value)}
    return py_str(name.value), arguments, py_str(counter.value)


def _any_value(kind: str) -> str:
    """Return a value of the type of a required attribute."""
    if kind.startswith('{'):
        return re.findall("'([^']*)'", kind)[0]
    return '(2, 2)' if 'Shape' in kind or 'tuple' in kind else '0' if 'boolean' in kind else '1'


def _whole_symbol(name: str) -> Any:
    """Return the symbol of an operator with all of its outputs, also hidden outputs."""
    handle = _handle(name)
    _, arguments, counter = _signature(handle)
    attributes = {key: _any_value(kind) for key, kind in arguments.items()
                  if 'required' in kind and 'NDArray' not in kind and not kind.startswith(('ndarray', 'Symbol'))}
    attributes.update(_ATTRIBUTES.get(name, {}))
    if counter:
        attributes[counter] = '2'
    symbol_handle = ctypes.c_void_p()
    keys, values = ((ctypes.c_char_p * len(attributes))(*map(c_str, texts))
                    for texts in (attributes.keys(), attributes.values()))
    check_call(_LIB.MXSymbolCreateAtomicSymbol(handle, mx_uint(len(attributes)), keys, values,
                                                ctypes.byref(symbol_handle)))
    check_call(_LIB.MXSymbolCompose(symbol_handle, c_str('node'), mx_uint(0), None, None))
    text = json.loads(mx.sym.Symbol(symbol_handle).tojson())
    rows = text['node_row_ptr']
    text['heads'] = [[len(text['nodes']) - 1, output, 0] for output in range(rows[-1] - rows[-2])]
    return mx.sym.load_json(json.dumps(text))


def _gradient_operators(name: str) -> List[str]:
    """Return the operators that the gradient of an operator consists of, besides itself; MXNetError if it has none."""
    symbol = _whole_symbol(name)
    inputs = symbol.list_inputs()
    if not inputs:
        raise MXNetError('%s has no inputs' % name)
    inner = symbol.get_internals()
    entries = {'grad_ys': symbol, 'grad_xs': mx.sym.Group([inner[source] for source in inputs]),
               'grad_ys_out_grad': mx.sym.Group([mx.sym.var('gradient%d' % at) for at in range(len(symbol))])}
    graph, gradient, result = (ctypes.c_void_p() for _ in range(3))
    check_call(_LIB.NNGraphCreate(symbol.handle, ctypes.byref(graph)))
    for key, value in entries.items():
        check_call(_LIB.NNGraphSetNodeEntryListAttr_(graph, c_str(key), value.handle))
    passes = (ctypes.c_char_p * 1)(c_str('MXGradient'))
    check_call(_LIB.NNGraphApplyPasses(graph, mx_uint(1), passes, ctypes.byref(gradient)))
    check_call(_LIB.NNGraphGetSymbol(gradient, ctypes.byref(result)))
    return sorted({node['op'] for node in json.loads(mx.sym.Symbol(result).tojson())['nodes']} - {'null', name})


def with_gradient() -> Dict[str, Registered]:
    """Return the operators that have a gradient and may be part of a network."""
    registered = {}
    for name, names in sorted(_names_of_operators().items()):
        if _LEFT_OUT.match(name):
            continue
        is_zero = False
        if name not in _WITH_GRADIENT:
            try:
                operators = _gradient_operators(name)
            except MXNetError:
                continue
            is_zero = bool(operators) and all(operator.startswith(('_zeros', 'zeros_like', '_NoGradient'))
                                              for operator in operators)
        public = [other for other in names if other != name and not other.startswith('_')]
        registered[name] = Registered(tuple(public), is_zero)
    return registered


def _description(rule: Rule) -> str:
    """Return the description of a rule, the first paragraph of its class's docstring, as Markdown."""
    text = ' '.join((inspect.getdoc(type(rule)) or '').split('\n\n')[0].split())
    text = re.sub(r' \(:\w+:`[^`]*`\)', '', text)
    return re.sub(r'``|:\w+:`~?', '`', text).rstrip('.')


def _names(operators: List[str], registered: Dict[str, Registered]) -> str:
    texts = []
    for name in sorted(operators, key=str.lower):
        aliases = [alias for alias in (registered[name].aliases if name in registered else ()) if '_' + alias != name]
        texts.append('`%s`%s' % (name, ' (%s)' % ', '.join('`%s`' % alias for alias in aliases) * bool(aliases)))
    return ', '.join(texts)


def page() -> str:
    """Return the text of the page."""
    registered, known, names = with_gradient(), rules(), set(_names_of_operators())
    by_description: Dict[Tuple[str, bool, bool], List[str]] = collections.defaultdict(list)
    for name, rule in known.items():
        if not isinstance(rule, OnOneRank) and (name in registered or name in names):
            adds = type(rule).partials is not Rule.partials
            by_description[_description(rule), adds, rule.collective is not None].append(name)
    rows = ['| %s | %s | %s |' % (_names(operators, registered), text,
                                  ', '.join(['partial sums'] * adds + ['together'] * together))
            for (text, adds, together), operators in by_description.items()]
    alone = [name for name, rule in known.items() if name in registered and isinstance(rule, OnOneRank)]
    whole = [name for name in registered if name not in known]
    return _TEXT % {'version': mx.__version__, 'count': len(registered), 'ruled': '\n'.join(rows),
                    'alone': _names(alone, registered), 'whole_count': len(whole),
                    'whole': '\n'.join(_bullets(whole, registered))}


def _bullets(operators: List[str], registered: Dict[str, Registered]) -> List[str]:
    groups: Dict[str, List[str]] = {title: [] for title in _GROUPS}
    groups['Operators whose gradient is always zero'] = []
    for name in operators:
        title = next(title for title, pattern in _GROUPS.items() if re.match(pattern, name))
        is_zero = title == 'Others' and registered[name].is_zero
        groups['Operators whose gradient is always zero' if is_zero else title].append(name)
    texts = {title: 'all %d whose names begin with `%s` and that have no rule' % (len(names), _NUMPY)
             if _GROUPS.get(title) == _NUMPY else _names(names, registered) for title, names in groups.items()}
    return [textwrap.fill('- %s: %s.' % item, 120, subsequent_indent='  ', break_long_words=False,
                          break_on_hyphens=False) for item in texts.items()]


def main() -> int:
    """Write the page, or tell whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--check', action='store_true', help='write nothing; fail if the page is not up to date')
    options = parser.parse_args()
    text = page()
    if options.check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0
