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


def maker_of(call):
    """The maker that is called, and the place of its device; None for any other call."""
    names, node = [], call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not names or names[0] not in MAKERS or 'nd' not in names[1:] + [getattr(node, 'id', '')]:
        return None
    return names[0], MAKERS[names[0]] + ('sparse' in names)  # which take the storage type first


def unplaced(source):
    """Lines of a module that make arrays wherever the script works at the moment."""
    calls = [(node, maker_of(node)) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [node.lineno for node, maker in calls if maker is not None and len(node.args) <= maker[1]
            and not any(keyword.arg == 'ctx' for keyword in node.keywords)]


@pytest.mark.parametrize('line', ['mx.nd.zeros(3)', "nd.sparse.zeros('row_sparse', (3, 1), dtype=dtype)",
                                  'mx.nd.array(values, dtype=dtype)'])
def test_arrays_without_a_place_are_found(line):
    assert unplaced(line) == [1]


@pytest.mark.parametrize('line', ['mx.nd.zeros(3, ctx=mx.cpu())', 'mx.nd.zeros((1, 1), array.context)',
                                  "mx.nd.sparse.zeros('row_sparse', (1, 1), array.context)", 'np.zeros(3)'])
def test_others_are_not(line):
    assert not unplaced(line)


def test_every_array_has_a_place():
    modules = [path for path in PACKAGE.rglob('*.py') if path.relative_to(PACKAGE).as_posix() not in PROGRAMS]
    found = {path.relative_to(PACKAGE).as_posix(): unplaced(path.read_text()) for path in modules}
    assert len(found) > 100
    assert not {path: lines for path, lines in found.items() if lines}
