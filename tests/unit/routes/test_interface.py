"""No code outside of routes asks for the class of a route, a table or a backend."""
import ast
import pathlib

import pytest

import mxhybrid

pytestmark = pytest.mark.both_pythons

PACKAGE = pathlib.Path(mxhybrid.__file__).parent
CLASSES = {'DenseAllreduce', 'ServerGradients', 'OnDemandRows', 'RowAllreduce', 'ServerWeights', 'Replicated', 'Route',
           'TableWeight', 'RowGradients', 'Replica', 'Table', 'Distributed', 'OneProcess'}
OUTSIDE = [path for path in sorted(PACKAGE.rglob('*.py')) if path.parent.name not in ('routes', 'servers')]


def asked(tree):
    """Names of classes in calls of isinstance and comparisons of types; attributes `kind` that are compared."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') in ('isinstance', 'issubclass'):
            yield from (name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name))
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            yield from (name.id for side in sides for name in ast.walk(side) if isinstance(name, ast.Name))
            yield from ('.kind of a route' for side in sides if isinstance(side, ast.Attribute)
                        and side.attr == 'kind' and getattr(side.value, 'id', '') == 'route')


@pytest.mark.parametrize('path', OUTSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_asks_which_class_it_has(path):
    assert not set(asked(ast.parse(path.read_text()))) & (CLASSES | {'.kind of a route'})


def test_the_question_would_be_seen():
    for text in ('isinstance(route, (Table, int))', 'type(backend) is Distributed', 'route.kind == "allreduce"'):
        assert set(asked(ast.parse(text))) & (CLASSES | {'.kind of a route'})
