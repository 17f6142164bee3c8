"""Context managers undo in ``finally`` what they did before the block, which may raise."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ('mxhybrid', 'scripts', 'tests/helpers', 'examples')
BLOCKS = ('body', 'orelse', 'finalbody', 'handlers')


def is_context_manager(node):
    decorators = getattr(node, 'decorator_list', [])
    return any(getattr(decorator, 'attr', getattr(decorator, 'id', '')) in ('contextmanager', 'asynccontextmanager')
               for decorator in decorators)


def skipped_by_an_error(block, is_last=True):
    """Return the lines of yields before statements that an error of the block skips; `is_last`: nothing follows it."""
    lines = []
    for statement, following in zip(block, block[1:] + [None]):
        ends = is_last if following is None else isinstance(following, ast.Return) and following.value is None
        if isinstance(statement, ast.Try) and statement.finalbody:
            continue
        inner_blocks = [getattr(statement, name) for name in BLOCKS if hasattr(statement, name)]
        if inner_blocks:
            for inner in inner_blocks:
                lines += skipped_by_an_error(inner, ends)
        elif not ends and any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement)):
            lines.append(statement.lineno)
    return lines


def lines_of(source):
    return [line for node in ast.walk(ast.parse(source)) if is_context_manager(node)
            for line in skipped_by_an_error(node.body)]


HEAD = '@contextlib.contextmanager\ndef changed(self):\n    self.mode = 1\n'


@pytest.mark.parametrize('body, count', [
    ('    yield\n    self.mode = 0', 1), ('    with other():\n        yield\n    self.mode = 0', 1),
    ('    if self.mode:\n        yield\n    self.mode = 0', 1), ('    result = yield self\n    self.mode = 0', 1),
    ('    try:\n        yield\n        check()\n    finally:\n        self.mode = 0', 0),
    ('    with other():\n        yield', 0), ('    try:\n        yield\n    except OSError:\n        self.mode = 0', 0),
    ('    if self.mode:\n        yield\n        return\n'
     '    try:\n        yield\n    finally:\n        self.mode = 0', 0)])
def test_statements_after_a_yield_are_found(body, count):
    assert len(lines_of(HEAD + body)) == count


def test_managers_undo_their_changes_after_errors():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob('*.py')]
    found = {str(path): lines_of(path.read_text()) for path in paths if 'contextmanager' in path.read_text()}
    assert len(found) > 20
    assert not {path: lines for path, lines in found.items() if lines}
