"""Sentences that people read are plain English: this test refuses patterns that a reader has to decode.

`ROOTS` lists the covered files and folders. A folder covers its Markdown pages; the docstrings, comments and messages
of its Python files; and the comments of its C++ files and shell scripts. There are no exceptions: write the sentence
again.
"""
import ast
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

#: Files and folders that this test covers, relative to the repository.
ROOTS = ['README.md', 'CONTRIBUTING.md', 'docs', 'mxhybrid', 'scripts', 'examples', 'tests', 'setup.py', '.ci/run']

#: Words after which "who" has no noun: prepositions, conjunctions and verbs.
_NO_NOUNS = ('of|by|for|to|from|with|in|on|at|as|and|or|but|if|than|that|where|when|while|whether|is|are|was|were|be|'
             'says?|said|tells?|told|knows?|sees?|seen|learns?|asks?|names?|finds?|found|decides?|lets?|shows?|what')
#: Verbs that are no nouns.
_VERBS = ('add|ask|begin|carry|come|compute|do|fail|find|forget|get|give|go|hang|join|keep|leave|listen|make|put|'
          'receive|say|see|send|sleep|stay|take|tell|write')
#: Verbs that are nouns, too.
_NOUN_VERBS = ('answer|call|change|check|copy|count|end|hold|load|look|move|name|print|pull|push|read|run|show|start|'
               'stop|sum|train|travel|try|update|wait|work')
#: Words that end the object of "have", so that a verb after them is no part of the pattern.
_NO_OBJECT = ('to|not|been|who|that|which|and|or|can|may|might|must|will|would|could|should|shall|do|does|did|of|in|'
              'for|by|with|on|at|from')

#: Patterns by their description, for every sentence.
SENTENCES = {
    'begins with "Of"': r'^Of\b',
    'begins with a preposition and "what", "who", "which" or "those"':
        r'^(As|At|After|Before|Behind|Beside|By|For|From|In|On|Over|To|Under|With|Without) '
        r'(what|whatever|who|whoever|whom|whose|which|those)\b',
    'statement that begins with "What" or "Whatever"': r'^(What|Whatever)\b[^?]*\.$',
    '"who" without a noun before it': r'(?i)(^|[,;:(] ?|\b(%s) )(who|whom|whoever)\b' % _NO_NOUNS,
    '"so many" or "so much", unless "that" follows': r'\bso (many|much)\b(?!.* that\b)',
    '"that be"': r'\bthat be\b',
    '"were it"': r'\bwere it\b',
    '"have something do": use "make", or say what happens':
        r"\b(has|have|had|having) (?:((it|them|him|her|everybody|everyone|MXNet|Horovod|all others|the others|another) "
        r"(%s|%s))|((?!(%s)\b)[\w'-]+ ){1,3}(%s))\b(?![-'])" % (_VERBS, _NOUN_VERBS, _NO_OBJECT, _VERBS),
    'clause that begins with "else": write "otherwise"': r'[;:] else\b|^Else,? (?!if)',
    '"anew": write "again", or "new"': r'\banew\b',
    '"split as what it reads" and other objects that begin with "as what"': r'\bas what\b(?! (is|was)\b)',
    '"one behind the other": write "one after the other"': r'\bone (\w+ )?behind the other\b',
    'predicate before the subject': r'^(Not|Also|Only) \w+(ed|en|wn|ne) (is|are|was|were)\b',
}

#: Words with which no docstring begins: a verb does, or the noun that is described.
OPENINGS = ('About|After|All that|Among|As|At|Because|Before|Behind|Below|Beside|Besides|Between|By|During|'
            'For|From|He|How|If|In|Inside|Into|It|Its|Like|Near|Of|On|One|Ones|Onto|Out|Outside|Over|She|'
            'Since|Such|That|Their|There|These|They|This|Those|Through|To|Under|Until|Upon|What|Whatever|'
            'When|Where|Whether|Which|While|Who|Whoever|Whom|Whose|Why|With|Within|Without')
OPENING = r'^(%s)\b' % OPENINGS
#: A verb with "what" in place of a noun, as in "Return what servers hold."
HEADLESS_OBJECT = r'^\w+ what\b'
#: A clause with "what" in place of a noun in a list, as in "The route table: what moves, and what it costs."
HEADLESS_CLAUSE = r'([:;,]|\band|\bor) what (is|are|was|were|they|it|each|a|the|all|any|every|this|\w+s)\b'


class Passage(NamedTuple):
    """Text that stands together in a file."""

    line: int
    text: str
    is_docstring: bool = False


def plain(text):
    """Return text on one line, without the marks of Markdown and reStructuredText; code counts as a noun."""
    text = re.sub(r'!\[[^]]*\]\([^)]*\)', '', text)
    text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', text)
    text = re.sub(r':\w+:`[^`]*`|``[^`]*``|`[^`]*`', 'CODE', text)
    text = re.sub(r'%(\(\w+\))?[-+#0 ]?\d*(\.\d+)?[a-zA-Z]', 'VALUE', text)
    return ' '.join(re.sub(r'\*\*|<[^>]*>', '', text).split())


def sentences(passage):
    """Yield the sentences of a passage."""
    for sentence in re.split(r'(?<=[.!?:])\s+(?=[A-Z("])', plain(passage.text)):
        if sentence:
            yield sentence


def markdown(source):
    """Yield the paragraphs, list items, headings and table cells of a page."""
    lines, first = [], 1
    in_code = False
    for number, line in enumerate(source.splitlines() + [''], 1):
        if line.startswith('```'):
            in_code = not in_code
            line = ''
        elif in_code:
            continue
        cells = re.split(r'(?<!\\)\|', line.strip('|')) if line.startswith('|') else []
        starts = re.match(r'\s*([-*]|\d+\.) |#+ ', line)
        if (not line.strip() or cells or starts) and lines:
            yield Passage(first, '\n'.join(lines))
            lines = []
        for cell in cells:
            yield Passage(number, cell)
        if line.strip() and not cells:
            first = first if lines else number
            lines.append(line[starts.end():] if starts else line)


def paragraphs(docstring, line):
    """Yield the paragraphs of a docstring, without examples."""
    text, is_first, is_code = docstring, True, False
    for paragraph in re.split(r'\n\s*\n', text):
        if not is_code and not paragraph.lstrip().startswith('>>>'):
            yield Passage(line, re.sub(r'^\s*-{3,}$', '', paragraph, flags=re.MULTILINE), is_first)
        is_first, is_code = False, paragraph.rstrip().endswith('::')
        line += paragraph.count('\n') + 2


def messages(tree):
    """Yield the texts that are raised or logged."""
    for node in ast.walk(tree):
        logs = (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                and node.func.attr in ('debug', 'info', 'warning', 'error', 'exception', 'critical'))
        if not isinstance(node, ast.Raise) and not logs:
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.JoinedStr):
                yield Passage(inner.lineno, ''.join(part.value if isinstance(part, ast.Constant) else 'VALUE'
                                                    for part in inner.values))
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str) and ' ' in inner.value:
                yield Passage(inner.lineno, inner.value)


def python(source):
    """Yield the docstrings, comments and messages of a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield from paragraphs(docstring, node.body[0].lineno)
    yield from messages(tree)
    comments = [(token.start[0], token.string, token.line.strip() == token.string)
                for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT]
    yield from joined((number, re.sub(r'^#:? ?', '', text), alone) for number, text, alone in comments
                      if not re.match(r'#!|#\s*(noqa|type:|shellcheck)|# -{4,}', text))


def joined(comments):
    """Yield passages of comments: those on lines of their own belong together where they follow each other."""
    lines, first, last = [], 0, 0
    for number, text, alone in comments:
        if lines and not (alone and number == last + 1 and text.strip()):
            yield Passage(first, '\n'.join(lines))
            lines = []
        first = first if lines else number
        lines.append(text)
        last = number if alone else 0
    if lines:
        yield Passage(first, '\n'.join(lines))


def cpp(source):
    """Yield the comments of a C++ file."""
    comments = []
    for number, line in enumerate(source.splitlines(), 1):
        match = re.match(r'(.*?)//[/<]* ?(?!-{4,}| ?NOLINT)(.*)$', line)
        if match and match.group(1).count('"') % 2 == 0:
            comments.append((number, match.group(2), not match.group(1).strip()))
    return joined(comments)


def shell(source):
    """Yield the comments of a shell script that stand on lines of their own."""
    lines = [(number, re.match(r'\s*# ?(.*)$', line)) for number, line in enumerate(source.splitlines(), 1)]
    return joined((number, match.group(1), True) for number, match in lines
                  if match and not re.match(r'!|shellcheck', match.group(1)))


def reader_of(path):
    """Return the function that finds the passages of a file, or None if the file has none."""
    known = {'.md': markdown, '.py': python, '.h': cpp, '.cc': cpp}.get(path.suffix)
    if known or path.suffix:
        return known
    with path.open('rb') as file:
        first_line = file.readline()
    return python if b'python' in first_line else shell if first_line.startswith(b'#!') else None


def covered():
    """Return the paths of all files that `ROOTS` covers and that have passages."""
    paths = []
    for root in ROOTS:
        path = REPOSITORY / root
        paths += [path] if path.is_file() else sorted(inner for inner in path.rglob('*') if inner.is_file())
    return [path.relative_to(REPOSITORY).as_posix() for path in paths if reader_of(path)]


def findings(passages):
    """Return a line for each sentence that has one of the patterns."""
    lines = []
    for passage in passages:
        for number, sentence in enumerate(sentences(passage)):
            rules = [name for name, pattern in SENTENCES.items() if re.search(pattern, sentence)]
            if passage.is_docstring and number == 0 and re.match(OPENING, sentence):
                rules.append('docstring that begins with neither a verb nor a noun')
            if passage.is_docstring and number == 0 and (re.match(HEADLESS_OBJECT, sentence)
                                                         or re.search(HEADLESS_CLAUSE, sentence)):
                rules.append('docstring with "what" in place of a noun: name it')
            lines += ['line %d: %s: %s' % (passage.line, rule, sentence) for rule in rules]
    return lines


@pytest.mark.parametrize('name', covered())
def test_sentences_are_plain(name):
    path = REPOSITORY / name
    found = findings(reader_of(path)(path.read_text()))
    assert not found, '%s\n%s' % (name, '\n'.join(found))


@pytest.mark.parametrize('sentence', [
    'Of these the search has 8, and does not walk.', 'This page is for who reads the code.',
    'Who computes is not ended.', 'MXNet has it look for work.',
    'In what the other hosts send it looks for errors.', 'What does not vary in a job is part of what is fixed.',
    'It tells who is silent.', 'a worker for which the others wait, who sleeps', 'It sleeps for so many seconds.',
    'It takes a limit that be exceeded.', 'A host that answers first has all others wait.', 'Not drawn are GPUs.',
    'The ranges are cut anew.', 'It follows its inputs; else it is whole.', 'It is split as what it reads.',
    'They run one behind the other.',
    'The command has the servers send their rows.', 'busy for so long, were it the machine of the profiles'])
def test_patterns_are_found(sentence):
    assert findings([Passage(1, sentence)])


@pytest.mark.parametrize('sentence', [
    'This page is for people who read the code.', 'In a job of one process pushes go to the store.',
    'What does this mean?',
    'Workers have to wait.', 'It has a name, and the servers send rows.', 'All hosts have the same parts.',
    'For tables, a measurement decides.', 'It has three methods that update rows.', 'They have not been tried.',
    'The memory has no name.', 'Return the name, else None.',
    'It has so many readers that MXNet adds them up.', 'each worker has a partial sum'])
def test_plain_sentences_are_not(sentence):
    assert not findings([Passage(1, sentence)])


def test_docstrings_begin_with_a_verb_or_a_noun():
    source = '"""%s"""\n\n\ndef f():\n    """Return it.\n\n    With more words.\n    """\n'
    assert not findings(python(source % 'Tables of rows.'))
    for opening in ('Of a table.', 'Whether it works.', 'What a worker sends.', 'It works.',
                    'Return what a worker sends.', 'A pull: what is sent, and when.'):
        assert findings(python(source % opening)), opening


def test_every_kind_of_text_is_read():
    text = 'This is for who reads it.'
    for reader, source in [
            (markdown, '# Title\n\n- %s\n'), (markdown, '| a | %s |\n'), (python, 'x = 1  # %s\n'),
            (python, '# A\n# %s\n'), (python, 'def f():\n    """%s"""\n'), (python, 'raise E("%s")\n'),
            (python, 'log.info("%s", 1)\n'),
            (cpp, 'int x;  // %s\n'), (cpp, '/// %s\n'), (shell, '#!/bin/sh\n# %s\n')]:
        assert findings(reader(source % text)), source
    assert not findings(markdown('```text\n%s\n```\n' % text))
