"""No two classes of a top-level folder share a name, and no two public functions that differ."""
import ast
import collections
from pathlib import Path

import mxhybrid

PACKAGE = Path(mxhybrid.__file__).resolve().parent
#: Functions that several modules have, and that are called by the module's name where there are more than one at hand.
ALIKE = {
    'main': 'of a program', 'add_arguments': 'of a subcommand', 'run': 'of a subcommand',
    'lines_of': 'what a subcommand prints', 'check': 'of the doctor', 'join': 'of a launcher'}


def homes(kind):
    """Files by the names of the classes or functions, as `kind` says, that they define at their top."""
    found = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob('*.py')):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kind):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def test_no_two_classes_of_a_folder_share_a_name():
    together = collections.defaultdict(list)
    for name, files in homes(ast.ClassDef).items():
        for file in files:
            together[file.partition('/')[0], name.lstrip('_')].append(file)
    assert len(together) > 50
    assert not {name: files for name, files in together.items() if len(files) > 1}


def test_no_two_public_functions_of_a_folder_share_a_name():
    functions = homes(ast.FunctionDef)
    shared = {name: files for name, files in functions.items() if not name.startswith('_')
              and len({file.partition('/')[0] for file in files}) < len(files)}
    assert {name: files for name, files in shared.items() if name not in ALIKE} == {}
    assert set(shared) == set(ALIKE)
