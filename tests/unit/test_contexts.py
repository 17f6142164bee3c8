"""Arrays that the package makes for itself say where they are: a script may work in ``with mx.gpu():``."""
import ast
import pathlib

import pytest

import mxhybrid

PACKAGE = pathlib.Path(mxhybrid.__file__).parent

#: Programs of their own, in which nobody has chosen another device.
PROGRAMS = ('commands/sanity.py', 'commands/checks/try_joining.py', 'commands/checks/inspect_package.py')

#: Functions that make an array, and at which place each takes its device.
MAKERS = {'array': 1, 'zeros': 1, 'ones': 1, 'empty': 1, 'full': 2, 'arange': 4}


def device_place(call):
    """Return the place of the device among the arguments of a call that makes an array; -1 for any other call."""
    names, node = [], call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not names or names[0] not in MAKERS or 'nd' not in names[1:] + [getattr(node, 'id', '')]:
        return -1
    return MAKERS[names[0]] + ('sparse' in names)  # which take the storage type first


def unplaced(source):
    """Return the lines of a module that make arrays wherever the script works at the moment."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
            if len(node.args) <= device_place(node) and not any(keyword.arg == 'ctx' for keyword in node.keywords)]


@pytest.mark.parametrize('line, is_unplaced', [
    ('mx.nd.zeros(3)', True), ("nd.sparse.zeros('row_sparse', (3, 1), dtype=dtype)", True),
    ('mx.nd.array(values, dtype=dtype)', True), ('mx.nd.zeros(3, ctx=mx.cpu())', False),
    ('mx.nd.zeros((1, 1), array.context)', False), ('np.zeros(3)', False),
    ("mx.nd.sparse.zeros('row_sparse', (1, 1), array.context)", False)])
def test_arrays_without_a_place_are_found(line, is_unplaced):
    assert unplaced(line) == [1] * is_unplaced


def test_every_array_has_a_place():
    modules = [path for path in PACKAGE.rglob('*.py') if path.relative_to(PACKAGE).as_posix() not in PROGRAMS]
    found = {path.relative_to(PACKAGE).as_posix(): unplaced(path.read_text()) for path in modules}
    assert len(found) > 100
    assert not {path: lines for path, lines in found.items() if lines}
