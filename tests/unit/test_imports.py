"""The graph of imports, from the syntax tree of every module: rules that import-linter's contracts cannot express.

The contracts are about single imports (import-linter, which scripts/test runs); this is about all of them together
and about those that Python runs while a module is imported.
"""
import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import mxhybrid

PACKAGE = Path(mxhybrid.__file__).resolve().parent
ROOT = PACKAGE.name
#: The most arrows between top-level folders: a newcomer has to know each.
MOST_ARROWS = 97
#: Folders that must be quick, or work where the heavy packages are missing, crash or hang.
LIGHT = ('base', 'messaging', 'watchdog', 'telemetry', 'commands/checks')
HEAVY = {'mxnet', 'horovod', 'numpy'}
#: The package itself: what users call.
FACE = ''


def module_of(path):
    """Return the name of the module in a file of the package."""
    parts = (ROOT,) + path.relative_to(PACKAGE).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


FILES = {module_of(path): path for path in sorted(PACKAGE.rglob('*.py'))}
#: The modules of scripts and tests, too.
ALL_FILES = dict(FILES)
for _folder, _base in (('scripts/lab', 'scripts'), ('tests', '.'), ('examples', 'examples')):
    for _path in sorted((PACKAGE.parent / _folder).rglob('*.py')):
        ALL_FILES['.'.join(_path.relative_to(PACKAGE.parent / _base).with_suffix('').parts)] = _path


def folder_of(module):
    """Return the folder, inside the package, in which a module lies; `FACE` for the package itself."""
    if module == ROOT:
        return FACE
    inner = FILES[module].parent.relative_to(PACKAGE).as_posix()
    return FILES[module].stem if inner == '.' else inner


@functools.lru_cache(None)
def tree_of(module):
    return ast.parse(ALL_FILES[module].read_text())


def statements(tree, at_import):
    """Yield the import statements of a module; only those that importing it runs, with `at_import`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not (at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield from statements(node, at_import)


def imports_of(module, at_import=False):
    """Return the names of the modules that a module imports: of this repository's in full, of others the first word."""
    package = module.split('.') if ALL_FILES[module].stem == '__init__' else module.split('.')[:-1]
    imported = set()
    for node in statements(tree_of(module), at_import):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = package[:len(package) - node.level + 1] if node.level else []
            base = '.'.join(base + ([node.module] if node.module else []))
            names = ['%s.%s' % (base, alias.name) for alias in node.names]
        for name in names:
            known = name
            while known and known not in ALL_FILES:
                known = known.rpartition('.')[0]
            imported.add(known or name.partition('.')[0])
    return imported - {module}


def arrows():
    """Return all pairs of folders of which the first imports something of the second."""
    return {(folder_of(module), folder_of(other)) for module in FILES for other in imports_of(module)
            if other in FILES and folder_of(other) != folder_of(module)}


def circles(pairs):
    """Return the nodes that are on a circle, or lead to one and come from one."""
    pairs, count = set(pairs), None
    while count != len(pairs):
        count = len(pairs)
        sources, targets = {source for source, _ in pairs}, {target for _, target in pairs}
        pairs = {(source, target) for source, target in pairs if source in targets and target in sources}
    return sorted({source for source, _ in pairs})


def test_the_reading_of_imports():
    assert imports_of('mxhybrid.__main__') == {'sys', 'mxhybrid.commands.main'}
    assert 'mxhybrid.base.errors' in imports_of('mxhybrid')
    assert folder_of('mxhybrid') == FACE and folder_of('mxhybrid.__main__') == '__main__'
    assert folder_of('mxhybrid.commands.checks') == 'commands/checks'
    tree = ast.parse('import a\ntry:\n    import b\nfinally:\n    def f():\n        import c\n')
    assert [len(list(statements(tree, at_import))) for at_import in (True, False)] == [2, 3]
    assert circles({('a', 'b'), ('b', 'c'), ('c', 'a'), ('c', 'd'), ('e', 'a')}) == ['a', 'b', 'c']
    assert circles({('a', 'b'), ('b', 'c'), ('a', 'c')}) == []


def test_every_module_has_a_folder():
    assert [path.name for path in FILES.values() if path.parent == PACKAGE] == ['__init__.py', '__main__.py']


@pytest.mark.parametrize('module', [module for module, path in FILES.items() if path.name == '__init__.py'])
def test_a_folder_says_its_role_and_nothing_else(module):
    tree = tree_of(module)
    assert ast.get_docstring(tree)
    if module.count('.') < 2 and module not in (ROOT, 'mxhybrid.checkpoint', 'mxhybrid.elastic', 'mxhybrid.nn',
                                              'mxhybrid.parallel', 'mxhybrid.planner'):
        # MXNet's own server imports the handler, and with it its folder, while MXNet is half imported.
        assert len(tree.body) == 1


def test_no_circle_among_folders():
    assert circles(arrows()) == []


def test_no_circle_among_modules():
    assert circles({(module, other) for module in ALL_FILES for other in imports_of(module)
                    if other in ALL_FILES}) == []


def test_few_arrows_between_folders():
    top_level = {(source.partition('/')[0], target.partition('/')[0]) for source, target in arrows()}
    between = sorted((source, target) for source, target in top_level if source != target)
    assert 20 < len(between) <= MOST_ARROWS, between


def test_only_the_command_imports_the_package_as_users_do():
    assert {folder_of(module) for module in FILES if ROOT in imports_of(module)} == {'commands', 'commands/checks'}


@pytest.mark.parametrize('folder', LIGHT)
def test_nothing_heavy_at_import_time(folder):
    """Check indirect imports, too.  The package's own ``__init__`` knows the processes that must not wait for MXNet.

    Checks that are started as processes of their own, because what they import may fail, are imported by nobody.
    """
    programs = {module for module in FILES if "if __name__ == '__main__':" in FILES[module].read_text()}
    modules = [module for module in FILES if folder_of(module) == folder and module not in programs]
    assert modules
    came_from = dict.fromkeys(modules, '')
    while modules:
        module = modules.pop()
        for other in imports_of(module, at_import=True):
            assert other not in HEAVY, '%s, imported by %s, imports %s' % (module, came_from[module], other)
            if other in FILES and other != ROOT and other not in came_from:
                assert other not in programs
                came_from[other] = module
                modules.append(other)


def test_commands_know_the_planner_by_its_face_only():
    imported = {other for module in FILES if folder_of(module).startswith('commands') for other in imports_of(module)
                if other.startswith('mxhybrid.planner')}
    assert imported == {'mxhybrid.planner'}


@pytest.mark.both_pythons
def test_importing_the_package_imports_no_wing():
    program = ('import sys, mxhybrid\n'
               'print(*sorted(name for name in sys.modules if name.startswith("mxhybrid.")))\n'
               'assert mxhybrid.parallelize is mxhybrid.parallel.parallelize.parallelize\n'
               'assert callable(mxhybrid.checkpoint.load) and callable(mxhybrid.parallel.grid)\n'
               'assert set(mxhybrid.__all__) <= set(dir(mxhybrid))\n')
    output = subprocess.run([sys.executable, '-c', program], check=True, stdout=subprocess.PIPE, timeout=60).stdout
    imported = output.decode().split()
    assert 'mxhybrid.kvstore.hybrid' in imported
    assert not [name for name in imported if name.split('.')[1] in ('checkpoint', 'parallel', 'planner')]
    with pytest.raises(AttributeError, match='no attribute'):
        mxhybrid.no_such_name  # noqa: B018


def test_scripts_know_nothing_of_tests():
    scripts = PACKAGE.parent / 'scripts'
    files = [path for path in scripts.rglob('*') if path.suffix == '.py' or path.parent == scripts and path.is_file()
             and path.read_text().startswith('#!/usr/bin/env python3')]
    assert scripts / 'bench' in files and scripts / 'lab' / 'jobs.py' in files
    for path in files:
        for node in statements(ast.parse(path.read_text()), at_import=False):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or '']
            assert not any(name.partition('.')[0] in ('tests', 'helpers', 'conftest') for name in names), path
