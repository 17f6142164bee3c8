"""No two classes of a top-level folder share a name, and no two public functions that differ. The names of parameters,
attributes, and variables that are used over many lines say their role.
"""
import ast
import collections
import re
from pathlib import Path

import pytest

import mxhybrid

PACKAGE = Path(mxhybrid.__file__).resolve().parent
#: Functions that several modules have, and that are called by the module's name where there are more than one at hand.
ALIKE = {
    'main': 'of a program', 'add_arguments': 'of a subcommand', 'run': 'of a subcommand',
    'lines_of': 'what a subcommand prints', 'check': 'of the doctor', 'join': 'of a launcher'}
#: Names that say nothing about the role of a parameter, an attribute or a variable.
BARE_NAMES = {'at', 'found', 'given', 'kept', 'made', 'one', 'own', 'place', 'told', 'wanted'}
#: The most lines from the line that assigns such a variable to the last one that uses it.
MAX_LINES = 5
#: Words of a test's name.
MOST_WORDS = 9


def homes(kind):
    """Return, by name, the files that define a class or a function, as `kind` says, at their top."""
    places_by_name = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob('*.py')):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kind):
                places_by_name[node.name].append(str(path.relative_to(PACKAGE)))
    return places_by_name


def test_no_two_classes_of_a_folder_share_a_name():
    together = collections.defaultdict(list)
    for name, files in homes(ast.ClassDef).items():
        for file in files:
            together[file.partition('/')[0], name.lstrip('_')].append(file)
    assert len(together) > 50
    assert not {name: files for name, files in together.items() if len(files) > 1}


def test_public_functions_of_a_folder_have_own_names():
    functions = homes(ast.FunctionDef)
    shared = {name: files for name, files in functions.items() if not name.startswith('_')
              and len({file.partition('/')[0] for file in files}) < len(files)}
    assert {name: files for name, files in shared.items() if name not in ALIKE} == {}
    assert set(shared) == set(ALIKE)


def uses_outside_comprehensions(node, hidden=frozenset()):
    """Yield the variables in a function; a comprehension has variables of its own."""
    if isinstance(node, ast.Name) and node.id not in hidden:
        yield node
    for inner in ast.iter_child_nodes(node):
        generators = getattr(inner, 'generators', [])
        yield from uses_outside_comprehensions(inner, hidden | {
            name.id for generator in generators for name in ast.walk(generator.target) if isinstance(name, ast.Name)})


def long_lived_bare_names(source):
    """Return the lines that assign a bare name which is used more than `MAX_LINES` lines later."""
    lines = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            uses = collections.defaultdict(list)
            for name in uses_outside_comprehensions(function):
                if name.id in BARE_NAMES:
                    uses[name.id].append(name)
            for name, nodes in uses.items():
                assigned = [node.lineno for node in nodes if isinstance(node.ctx, ast.Store)]
                if assigned and max(node.lineno for node in nodes) - min(assigned) > MAX_LINES:
                    lines.add((min(assigned), name))
    return sorted(lines)


def without_comments_and_texts(source):
    """Return C++ source with blanks in place of comments and of the contents of texts."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda match: re.sub(r'[^\n]', ' ', match.group()), source,
                  flags=re.DOTALL)


def end_of_block(text, start):
    """Return the position at which the block, or the list of parameters and the block after it, ends around `start`."""
    depth = 0
    for match in re.compile(r'[(){}]').finditer(text, start):
        depth += 1 if match.group() in '({' else -1
        if depth < 0 and match.group() == '}':
            return match.start()
        if depth < 0:  # the end of a list of parameters: a block, or nothing, follows
            opening = re.compile(r'[;{]').search(text, match.end())
            return end_of_block(text, opening.end()) if opening and opening.group() == '{' else match.start()
    return len(text)


def long_lived_bare_names_of_cpp(source):
    """Return the lines of C++ that declare a member with a bare name, or a bare name that is used more than `MAX_LINES`
    lines later.
    """
    text = without_comments_and_texts(source)
    names = '|'.join(sorted(BARE_NAMES))
    lines = {(text.count('\n', 0, match.start(1)) + 1, match.group(1))
             for match in re.finditer(r'[\w>][ *&]+((?:%s)_) *[;={]' % names, text)}
    for match in re.finditer(r'(\w+|[>\]])[ *&]+(%s)\b *(?=[=;{,):\[])(?!==)' % names, text):
        type_name, name = match.groups()
        if type_name in ('return', 'else', 'case'):
            continue
        uses = re.compile(r'(?<![.\w])(?<!->)%s\b' % name).finditer(text, match.end(), end_of_block(text, match.end()))
        last = max((use.start() for use in uses), default=match.start(2))
        if text.count('\n', match.start(2), last) > MAX_LINES:
            lines.add((text.count('\n', 0, match.start(2)) + 1, name))
    return sorted(lines)


def parameters(function):
    """Return the parameters of a function."""
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
            *(argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None)]


def bare_parameters_and_attributes(source):
    """Return the lines with a parameter of a function, or an attribute of an object, that has a bare name."""
    lines = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines.update((argument.lineno, argument.arg) for argument in parameters(node))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            lines.add((node.lineno, node.attr))
        elif isinstance(node, ast.ClassDef):
            lines.update((field.lineno, field.target.id) for field in node.body if isinstance(field, ast.AnnAssign))
    return sorted((line, name) for line, name in lines if name.lstrip('_') in BARE_NAMES)


def described_parameters(docstring):
    """Return the names in the section of parameters of a NumPy docstring."""
    section = re.search(r'^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)', docstring, re.DOTALL | re.MULTILINE)
    return [name.strip().lstrip('*') for line in (section.group(1).splitlines() if section else ())
            if line and not line[0].isspace() for name in line.split(' : ')[0].split(',')]


def unknown_parameters(source):
    """Return the lines of functions and classes whose docstring describes a parameter that they do not have."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        callables, names = [node], set()
        if isinstance(node, ast.ClassDef):
            callables = [inner for inner in node.body
                         if isinstance(inner, ast.FunctionDef) and inner.name in ('__init__', '__new__')]
            names = {field.target.id for field in node.body if isinstance(field, ast.AnnAssign)}
        names |= {argument.arg for function in callables for argument in parameters(function)}
        lines += [(node.lineno, name) for name in described_parameters(ast.get_docstring(node) or '')
                  if name not in names]
    return lines


def python_files(folder):
    """Yield the Python files of a folder of the repository, also those without a suffix."""
    for path in sorted((PACKAGE.parent / folder).rglob('*')):
        if path.suffix == '.py' or not path.suffix and path.is_file() and b'python' in path.open('rb').readline():
            yield path


def cpp_files(folder):
    """Yield the C++ files of a folder of the repository."""
    yield from (path for path in sorted((PACKAGE.parent / folder).rglob('*')) if path.suffix in ('.cc', '.h'))


@pytest.mark.parametrize('refused_names, files_of, folder', [
    *[(refused_names, python_files, folder) for folder in ('mxhybrid', 'scripts', 'tests', 'examples')
      for refused_names in (long_lived_bare_names, bare_parameters_and_attributes, unknown_parameters)],
    *[(long_lived_bare_names_of_cpp, cpp_files, folder) for folder in ('mxhybrid', 'tests')]])
def test_names_say_their_role(refused_names, files_of, folder):
    files = list(files_of(folder))
    assert len(files) > 3
    refused = {path.relative_to(PACKAGE.parent).as_posix(): lines for path in files
               for lines in [refused_names(path.read_text())] if lines}
    assert not refused, 'at line and name: rename parameters, attributes and variables to what they are, and ' \
                        'describe parameters that exist'


@pytest.mark.parametrize('source, count', [
    ('void f() {\n  int found = 0;%s\n  return found;\n}', 1),
    ('void f() {\n  auto& made = *run;%s\n  made.end();\n}', 1), ('class A {\n  Box* own_ = nullptr;%s\n};', 1),
    ('int f(const char* at) {%s\n\n  return *at;\n}', 1), ('void f() {\n  { int found = 0; }%s\n  g(found);\n}', 0),
    ('void f() {\n  int x = 0;  // found%s\n  return found(x);\n}', 0), ('int at(int x);%s\nint y = at(2);', 0),
    ('void f() {\n  int found = 0; g(found);%s\n  h.found = "found";\n}', 0)])
def test_bare_names_of_cpp_are_found(source, count):
    assert len(long_lived_bare_names_of_cpp(source % ('\n  g();' * 5))) == count


@pytest.mark.parametrize('lines, count', [
    (['found = []', *['pass'] * 4, 'return found'], 0), (['found = []', *['pass'] * 5, 'return found'], 1),
    (['for at, (one, other) in pairs:', *['    pass'] * 6, '    print(at, one)'], 2),
    (['found = [one for one in range(3)]', *['pass'] * 6, 'print([one for one in range(3)])'], 0),
    (['with open(path) as made:', *['    pass'] * 6, '    made.close()'], 1)])
def test_bare_names_are_found(lines, count):
    source = 'def f():\n' + ''.join('    %s\n' % line for line in lines)
    assert len(long_lived_bare_names(source)) == count


@pytest.mark.parametrize('source, names', [
    ('def f(found, *, row_ids): pass', ['found']), ('def f(*wanted, **given): pass', ['given', 'wanted']),
    ('class A:\n    def f(self, rows):\n        self._kept = self.rows = rows', ['_kept']),
    ('class A(NamedTuple):\n    own: int\n    rows: int', ['own']), ('def f(foundation): pass', [])])
def test_bare_parameters_and_attributes_are_found(source, names):
    assert sorted(name for _, name in bare_parameters_and_attributes(source)) == names


def test_unknown_parameters_are_found():
    source = ('def f(rows, *keys):\n    """Do it.\n\n    Parameters\n    ----------\n    rows, ids : array\n'
              '        Their rows.\n    *keys : list\n\n    Raises\n    ------\n    InputError\n    """\n')
    assert unknown_parameters(source) == [(1, 'ids')]


def test_test_names_begin_with_noun_or_verb():
    names = [node.name for path in python_files('tests') for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.FunctionDef) and node.name.startswith('test_')]
    assert len(names) > 1000
    assert not [name for name in names if re.match('test_(what|whatever|who|whoever|of|those)_', name)]
    assert not [name for name in names if len(name.split('_')) > 1 + MOST_WORDS], 'say the condition and the outcome'
