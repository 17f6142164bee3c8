"""Draws networks from seeds: statement by statement, each of which is run here with MXNet alone as it is drawn."""
import os
import random as randoms
import re
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

from . import pieces
from .alone import examine
from .catalogue import ENTRIES
from .events import draw_events
from .network import Program, Rejected, base, pruned
from .plans import draw_plan
from .script import layer_code

Shape = Tuple[int, ...]

#: The most elements of a value, and its largest magnitude.
_ELEMENTS, _MAGNITUDE = 1500, 60.0


class Drawing:
    """A network that is being drawn: entries of the catalogue read its values and add statements."""

    def __init__(self, seed: str):
        self.random = randoms.Random(seed)
        self.arrays: Dict[str, Any] = {}
        self.kinds: Dict[str, str] = {}
        #: The layers, as ``self`` in statements.
        self.self = types.SimpleNamespace()
        self.program: Program = {'inputs': [], 'params': [], 'layers': [], 'statements': [], 'heads': [], 'frozen': [],
                                 'events': []}
        #: By layer, its operator and a test of the shapes that it takes.
        self.fits: Dict[str, Tuple[str, Callable[[Shape], bool]]] = {}
        self._numbers: Dict[str, int] = {}
        self._draw_inputs()

    # -- inputs ----------------------------------------------------------------------------------------------------

    def _draw_inputs(self) -> None:
        random = self.random
        self.samples = random.choice((1, 2, 3, 4, 4, 4, 5, 6, 7, 8))
        inputs = self.program['inputs']
        for _ in range(random.choice((1, 1, 1, 2, 2, 3))):
            if inputs and random.random() < 0.4:
                shape, axis = list(inputs[-1]['shape']), inputs[-1]['axis']
            else:
                shape, axis = self._input_shape(bool(inputs))
            self._add_input(shape, axis, random.choice(('ties', 'ties', 'reals')), 'float64')
        if random.random() < 0.35:
            shape, axis = self._input_shape(True, 2)
            self._add_input(shape, axis, 'ids', random.choice(('float64', 'float64', 'int32')))

    def _input_shape(self, may_lack_samples: bool, most: int = 6) -> Tuple[List[int], Optional[int]]:
        random = self.random
        count = min(most, random.choice((1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 6)))
        shape = [self.length() for _ in range(count)]
        if may_lack_samples and random.random() < 0.12:
            return shape, None
        axis = 0 if random.random() < 0.75 else random.randrange(count)
        shape[axis] = self.samples
        return shape, axis

    def length(self) -> int:
        """Draw a length of a dimension, often the number of samples."""
        return self.random.choice((self.samples, self.samples, 1, 2, 2, 3, 4, 4, 5, 6))

    def _add_input(self, shape: List[int], axis: Optional[int], values: str, dtype: str) -> None:
        name, limit = 'data%d' % len(self.program['inputs']), 5
        self.program['inputs'].append({'name': name, 'shape': shape, 'axis': axis, 'values': values, 'dtype': dtype,
                                       'limit': limit})
        array = pieces.values_of(values, tuple(shape), dtype, limit, len(self.arrays))
        self.keep(name, mx.nd.array(array, dtype=dtype), 'ids' if values == 'ids' else 'reals')

    def keep(self, name: str, array: Any, kind: str) -> None:
        """Add a value to the known values."""
        self.arrays[name], self.kinds[name] = array, kind

    # -- what entries ask for --------------------------------------------------------------------------------------

    def shape(self, name: str) -> Shape:
        """Return the shape of a value."""
        return tuple(self.arrays[name].shape)

    def known(self, test: Callable[[Shape], bool] = lambda shape: True, kind: str = 'reals') -> List[str]:
        """Return all values of a kind that pass a test, newer values first."""
        return [name for name in reversed(list(self.arrays)) if self.kinds[name] == kind and test(self.shape(name))]

    def pick(self, test: Callable[[Shape], bool] = lambda shape: True, kind: str = 'reals') -> str:
        """Draw one of these values, newer values more often; raise Rejected if there is none."""
        names = self.known(test, kind)
        if not names:
            raise Rejected('the network has no value that fits')
        return names[min(int(self.random.expovariate(0.6)), len(names) - 1)]

    def ranked(self, *counts: int) -> str:
        """Draw a value with a number of dimensions."""
        return self.pick(lambda shape: len(shape) in counts)

    def same_as(self, name: str) -> str:
        """Draw a value or a parameter of the same shape, often another one."""
        others = [other for other in self.known(lambda shape: shape == self.shape(name)) if other != name]
        if others and self.random.random() < 0.7:
            return self.random.choice(others)
        return name if self.random.random() < 0.3 else self.param(self.shape(name))

    def param(self, shape: Sequence[int]) -> str:
        """Draw an existing parameter, or make a new one."""
        same = [each['name'] for each in self.program['params'] if tuple(each['shape']) == tuple(shape)]
        if same and self.random.random() < 0.4:
            return self.random.choice(same)
        name = self.new_name('weight')
        self.program['params'].append({'name': name, 'shape': list(shape)})
        array = mx.nd.zeros(tuple(shape), dtype='float64')
        pieces.ByName()('net_' + name, array)
        self.keep(name, array, 'params')
        return name

    def ids(self, limit: int, test: Callable[[Shape], bool] = lambda shape: True) -> str:
        """Draw whole numbers below a limit: a new input, or a value that is converted to them."""
        have = [each['name'] for each in self.program['inputs'] if each['values'] == 'ids' and each['limit'] <= limit
                and test(tuple(each['shape']))]
        if have and self.random.random() < 0.7:
            return self.random.choice(have)
        source = self.pick(test)
        return self.add('clip', 'F.clip(F.floor(F.abs({0}) * 3.0), 0, %d)' % (limit - 1), source, kind='ids')

    def new_name(self, kind: str) -> str:
        """Return a name that nothing has."""
        self._numbers[kind] = self._numbers.get(kind, -1) + 1
        return '%s%d' % (kind, self._numbers[kind])

    def layer(self, kind: str, make: str, tied: str = '') -> str:
        """Make a new layer; return its name."""
        spec = {'name': self.new_name(kind), 'make': make, **({'tied': tied} if tied else {})}
        code = layer_code(spec, 'net_')
        try:
            layer = eval(code, {'nn': nn, 'rnn': rnn, 'self': self.self})
            layer.cast('float64')
            layer.initialize(pieces.ByName())
        except Exception as error:
            raise Rejected('%s: %s' % (code, error)) from error
        setattr(self.self, spec['name'], layer)
        self.program['layers'].append(spec)
        return spec['name']

    def add(self, op: str, code: str, *reads: str, outputs: int = 1, kind: str = 'reals', single: bool = False,
            **known: Any) -> str:
        """Add a statement, and run it; return the name of its first value.  A `single` one takes float32 only."""
        name = self.new_name('x')
        if single:
            code = re.sub(r'(\{\d\})', r"F.Cast(\1, dtype='float32')", code)
            code = "F.Cast(%s, dtype='float64')" % code
            known['rounds'] = 'float32'
        namespace = {'F': mx.nd, 'self': self.self, 'own_operator': pieces.own_operator,
                     **{base(read): self._base(read) for read in reads}}
        text = code.format(*reads)
        if os.environ.get('MXHYBRID_FUZZ_TRACEBACK'):
            sys.stderr.write('%s of %s\n' % (text, [self.shape(read) for read in reads]))
        try:
            arrays = pieces.as_list(eval(text, namespace))
            values = [array.asnumpy() for array in arrays]
        except Exception as error:  # whatever MXNet raises for arguments that it does not take
            raise Rejected('%s: %s' % (text, str(error).strip().split('\n')[-1])) from error
        if len(arrays) != outputs:
            raise Rejected('%s has %d outputs' % (text, len(arrays)))
        for value in values:
            if not value.size or value.size > _ELEMENTS or not value.ndim or not np.isfinite(value).all() or (
                    np.abs(value).max() > _MAGNITUDE):
                raise Rejected('%s is empty, large or not finite: %s' % (text, value.shape))
        self.program['statements'].append({'name': name, 'op': op, 'code': code, 'reads': list(reads), **known})
        names = [name] if outputs == 1 else ['%s[%d]' % (name, number) for number in range(outputs)]
        for value_name, array in zip(names, arrays):
            self.keep(value_name, array, kind)
        return names[0]

    def _base(self, read: str) -> Any:
        """Return the value that is read, or all outputs of its statement if it has several."""
        if '[' not in read:
            return self.arrays[read]
        return [array for name, array in self.arrays.items() if name.startswith(base(read) + '[')]

    def undo_to(self, mark: Tuple[int, ...]) -> None:
        """Remove all that was added since a mark."""
        for key, count in zip(('statements', 'params', 'layers'), mark):
            del self.program[key][count:]
        for name in list(self.arrays)[mark[3]:]:
            del self.arrays[name], self.kinds[name]

    def mark(self) -> Tuple[int, ...]:
        """Return the present lengths of the lists of the network."""
        return (len(self.program['statements']), len(self.program['params']), len(self.program['layers']),
                len(self.arrays))


def heads_of(drawing: Drawing) -> List[Dict[str, Any]]:
    """Draw the outputs: some of the values that nothing reads, and values of random operators."""
    program, random = drawing.program, drawing.random
    read = {value for statement in program['statements'] for value in statement['reads']}
    results = [name for name in drawing.arrays if name.startswith('x')]
    chosen = [name for name in results if name not in read][-random.choice((1, 2, 2, 3)):]
    results = [name for name in results if drawing.kinds[name] != 'ids']
    if results and random.random() < 0.2:
        chosen.append(random.choice(results))
    drawn = {statement['name']: statement['drawn'] for statement in program['statements'] if statement.get('drawn')}
    heads = [{'name': name, 'drawn': None} for name in dict.fromkeys(chosen) if name not in drawn]
    return heads + [{'name': name, 'drawn': how} for name, how in drawn.items()]


def with_shapes(program: Program) -> Program:
    """Return the program without unused parts, as `examine`; raise Rejected also if it has no samples."""
    program = pruned(program)
    if not any(each['axis'] is not None for each in program['inputs']):
        raise Rejected('no samples')
    return examine(program)


def draw(seed: int, workers: int, attempt: int, dtype: str = 'float64') -> Program:
    """Return the program of a seed, or of another attempt at it; raise Rejected if one process cannot train it."""
    drawing = Drawing('%d/%d' % (seed, attempt))
    random = drawing.random
    count = random.randint(2, 9)
    names, chances = list(ENTRIES), [chance for chance, _ in ENTRIES.values()]
    for _ in range(60):
        mark = drawing.mark()
        try:
            ENTRIES[random.choices(names, chances)[0]][1](drawing)
        except Rejected:
            drawing.undo_to(mark)
        if len(drawing.program['statements']) >= count:
            break
    program = {'seed': seed, 'attempt': attempt, 'workers': workers, 'dtype': dtype, **drawing.program}
    program['heads'] = heads_of(drawing)
    program.update(
        input_grad=random.random() < 0.5, steps=random.choice((2, 2, 3)), calls=random.choice((1, 1, 1, 1, 2)),
        optimizer={'learning_rate': 0.0625, **random.choice(({}, {'momentum': 0.5}))},
        on_store=random.choice((None, None, None, True)), shard_updates=random.random() < 0.2,
        end='release', plan={'kind': 'data_parallel'})
    if dtype == 'float32' and re.search(r'Conv2DTranspose\(|Deconvolution\(', str(program)):
        program['calls'] = 1  # MXNet alone cannot add up the gradients, see Deconvolution.lone_weight
    if all(head['drawn'] for head in program['heads']):
        raise Rejected('no outputs that are not drawn')
    program = with_shapes(program)
    return draw_events(dict(program, plan=draw_plan(program, random)), random)
