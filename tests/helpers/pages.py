"""The pages of the documentation, their code blocks and tables, for the tests that check them."""
import os
import re
import shlex
import sys

from lab import jobs
from lab.launchers import HOROVODRUN, REPOSITORY

PAGES = {path.relative_to(REPOSITORY).as_posix(): path.read_text()
         for path in [REPOSITORY / name for name in ('README.md', 'CONTRIBUTING.md', 'tests/README.md')]
         + sorted((REPOSITORY / 'docs').glob('*.md'))}
SHELL = ('bash', 'console')


def blocks_of(text):
    """list of (str, str): language and text of every code block."""
    return re.findall(r'^```(\w*)\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)


def code_of(page, language='python'):
    """list of str: the code blocks of a page in a language."""
    return [text for its_language, text in blocks_of(PAGES[page]) if its_language == language]


BLOCKS = [block for text in PAGES.values() for block in blocks_of(text)]
#: The train.py of all commands.
SCRIPT = code_of('docs/launching.md')[0]


def commands():
    """list of str: every shell command, continued lines joined, comments gone."""
    commands = []
    for language, text in BLOCKS:
        if language in SHELL:
            lines = text.replace('\\\n', ' ').splitlines()
            commands += [shlex.join(words) for words in (shlex.split(line, comments=True) for line in lines) if words]
    return commands


def parse(command):
    """Split a command into its environment (dict) and its words (list of str)."""
    words = shlex.split(command)
    env = {}
    while re.match(r'\w+=', words[0]):
        name, _, value = words.pop(0).partition('=')
        env[name] = value
    return env, words


def as_typed(argv):
    """list of str: a command line of `jobs`, as a user types it in the repository with the environment activated."""
    words = []
    for word in argv:
        word = shlex.split(str(word))[0]  # launch.py is given quoted words
        if word == sys.executable:
            word = 'python'
        elif word == HOROVODRUN:
            word = 'horovodrun'
        elif os.path.dirname(word) == os.path.dirname(sys.executable):
            word = os.path.basename(word)
        words.append(word.replace(str(REPOSITORY) + '/', ''))
    if words[:3] == ['python', '-m', 'mxhybrid']:
        return words[2:]
    return words[1:] if words[1] == 'horovodrun' else words


def table(head):
    """list of list of str: the rows of the one table whose first column is called `head`."""
    pattern = r'^\| %s \|.*\n\|[-|]*\n((?:\|.*\n)*)' % re.escape(head)
    found, = re.findall(pattern, '\n'.join(PAGES.values()), re.MULTILINE)
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in found.splitlines()]


def pinned():
    """set of str: ``name==version`` of all that scripts/install installs."""
    lines = (REPOSITORY / 'scripts' / 'requirements.txt').read_text().split('\n')
    return {line for line in lines if line and not line.startswith('#')}


def run(env, words, folder):
    """Run a command as it stands, `python` and `horovodrun` being those of this environment."""
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']
    words = [str(REPOSITORY / word) if word.startswith('scripts/') else word for word in words]
    with jobs.start_command(words, env=dict(env, PATH=path), cwd=folder) as job:
        return job.wait(timeout=120).ok().output


def written_cluster():
    """str: the cluster file that docs/planner.md shows."""
    text, = code_of('docs/planner.md', 'json')
    return text
