"""A name says one thing: no two classes of the package share one, and no two functions that differ."""
import ast
import collections
from pathlib import Path

import mxhybrid

PACKAGE = Path(mxhybrid.__file__).resolve().parent
#: Functions that several modules have, and that are called by the module's name where there are more than one at hand.
ALIKE = {
    'main': 'of what runs as a program by itself',
    'add_arguments': 'of a subcommand', 'run': 'of a subcommand', 'lines_of': 'what a subcommand prints',
    'check': 'what the doctor looks at', 'join': 'of a launcher, and of whichever there is',
    'read': 'of a file, or of what a launcher says', 'write': 'of a file, or of a terminal',
    'save': 'of what is kept in files', 'load': 'of what is kept in files', 'misfit': 'why a file does not fit'}


def homes(kind):
    """Files by the names of the classes or functions, as `kind` says, that they define at their top."""
    found = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob('*.py')):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kind):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def test_no_two_classes_share_a_name():
    together = collections.defaultdict(list)
    for name, files in homes(ast.ClassDef).items():
        together[name.lstrip('_')] += files
    assert len(together) > 50
    assert not {name: files for name, files in together.items() if len(files) > 1}


def test_no_two_public_functions_share_a_name():
    functions = homes(ast.FunctionDef)
    shared = {name: files for name, files in functions.items() if len(files) > 1 and not name.startswith('_')}
    assert {name: files for name, files in shared.items() if name not in ALIKE} == {}
    assert set(shared) == set(ALIKE)
