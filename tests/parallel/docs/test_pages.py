"""Pages of the documentation are correct: programs run; tables, links and names agree with the code.

A code block of an unknown language fails.
"""
import argparse
import ast
import dataclasses
import importlib
import json
import operator
import re
import types

import mxnet as mx
import pytest
from lab.benchmark import cli, launching, layers, model_steps, pipeline, plans, recovery, tables, training, workloads
from lab.launchers import REPOSITORY
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding
from mxnet.optimizer import Optimizer

import mxhybrid
from mxhybrid.base import settings
from mxhybrid.commands import main
from mxhybrid.native import optimizers
from mxhybrid.planner.cluster import cluster_spec

from ...helpers.pages import BLOCKS, PAGES, SCRIPT, code_of, commands, parse, run, table, written_cluster
from ..planner import test_planner

pytestmark = pytest.mark.timeout(150)
RESUMED = code_of('docs/checkpoints.md')[0]
LOOP, = code_of('docs/routes.md')
OWN, = code_of('docs/compatibility.md')


def test_languages_of_code_blocks():
    assert {language for language, _ in BLOCKS} <= {'bash', 'console', 'diff', 'json', 'mermaid', 'python', 'text'}
    assert sum(text.count('\n```') for text in PAGES.values()) == 2 * len(BLOCKS)
    first_words = {parse(command)[1][0] for command in commands()}
    for language, text in BLOCKS:
        assert language != 'mermaid' or ';' not in text, 'mermaid ends a statement there'
        if language == 'text':  # commands belong where they are tested
            assert not first_words & {line.split()[0] for line in text.splitlines() if line.strip()}


def test_change_of_a_script():
    """The README's diff leads to lines of the minimal example, in their order."""
    changed, = code_of('README.md', 'diff')
    lines = [line[1:] for line in changed.splitlines() if line.startswith(('+', ' '))]
    rest = iter(SCRIPT.splitlines())
    assert len(lines) == 3 and all(line in rest for line in lines)
    assert [line[1:] for line in changed.splitlines() if line.startswith('-')] == ["store = mx.kv.create('dist_sync')"]


def test_lengths_of_pages():
    assert len(PAGES['README.md'].splitlines()) <= 120
    assert len(PAGES['docs/benchmark.md'].split()) <= 2500


def test_loop_that_prefetches():
    net = gluon.Block()
    net.embedding = SparseEmbedding(10, 2)
    asked, batches = [], [(mx.nd.array([1]), mx.nd.array([0])), (mx.nd.array([2, 3]), mx.nd.array([1, 1]))]
    # Learning from a net is tested in tests/unit/kvstore/test_prefetching.py; here it takes the loop as it stands.
    recorded = types.SimpleNamespace(prefetching=lambda loader, wanted: mxhybrid.prefetching(
        loader, wanted if wanted is net else lambda batch: asked.append(wanted(batch)) or asked[-1]))
    exec(LOOP, {'mxhybrid': recorded, 'loader': batches, 'net': net})
    assert [(list(rows), list(rows.values())[0].asnumpy().tolist()) for rows in asked] == [
        ([net.embedding.weight], [2, 3])]


def test_net_with_dynamic_tables(capsys):
    program, = code_of('docs/embeddings.md')
    exec(program, {'__name__': '__main__'})
    report = capsys.readouterr().out
    assert 'net_embedding0_weight  2000000000     16            3' in report and 'net_words_weight' in report


def test_loop_that_resumes(tmp_path):
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    names = {'mxhybrid': mxhybrid, 'net': net, 'trainer': trainer, 'STEPS': 2500}
    for expected in (range(2500), range(2000, 2500)):
        steps = []
        exec(RESUMED.replace("'checkpoints'", repr(str(tmp_path))), dict(names, train=steps.append))
        assert steps == list(expected)
    assert mxhybrid.checkpoint.load(tmp_path, net, trainer)[:2] == (2000, {'epoch': 0})


def without_code(text):
    """Return a page without its code blocks."""
    return re.sub(r'^```.*?^```$', '', text, flags=re.MULTILINE | re.DOTALL)


# ----------------------------------------------------------------------------------------------------- tables

def test_settings():
    described = table('keyword')
    fields = dataclasses.fields(settings.Settings)
    assert [row[0] for row in described] == ['`%s`' % field.name for field in fields]
    for (_, variable, default, meaning), field in zip(described, fields):
        assert variable == '`%s`' % settings.variable(field.name)
        value = field.default
        undecided = {'silence_timeout': 'half of `timeout`', 'bind_to_cores': 'auto'}
        words = {(): {'routes': 'auto', 'storage': 'memory', 'storage_memory': 'no limit',
                      'staleness': '0'}.get(
            field.name, 'one per server'), '': 'none', None: undecided.get(field.name), (('*', 'float32'),): 'float32'}
        assert default == words.get(value, value if isinstance(value, str) else '%.12g' % value
                                    if isinstance(value, (int, float)) else None)
        # The page adds links.
        plain = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', meaning)
        assert plain == settings.DECLARED[field.name].meaning
    scopes = {scope: {name for name, one in settings.DECLARED.items() if one.scope == scope}
              for scope in (settings.ALL, settings.WORKER_0)}
    text = PAGES['docs/settings.md'].partition('| keyword |')[0]
    equal = re.search(r'comes last\.(.*?)must\s+be\s+equal', text, re.DOTALL).group(1)
    assert set(re.findall('`([a-z_]+)`', equal)) == scopes[settings.ALL]
    assert set(re.findall('`([a-z_]+)`', re.search(r'order\.(.*?)applies\.', text, re.DOTALL).group(1))) == (
        scopes[settings.WORKER_0])
    forms = re.search(r"`(\{.*\})` or `'(.*)'`", described[0][3])
    assert (settings.resolve({'partitions': ast.literal_eval(forms.group(1))})
            == settings.resolve({'partitions': forms.group(2)}))
    forms = re.search(r"`(\{.*\})` or `'(.*)'`", next(row[3] for row in described if row[0] == '`routes`'))
    assert settings.resolve({'routes': ast.literal_eval(forms.group(1))}).route_for('embedding') == 'allreduce'
    assert settings.resolve({'routes': forms.group(2)}).route_for('embedding') == 'allreduce'


def test_search_from_python(folder):
    program, = (text for text in code_of('docs/planner.md') if 'planner.search' in text)
    (folder / 'nets.py').write_text(test_planner.NETS)
    (folder / 'cluster.json').write_text(written_cluster())
    (folder / 'search.py').write_text(program)
    output = run({'XDG_CACHE_HOME': str(folder)}, ['python', 'search.py'], folder)
    assert re.search(r'ms a step, [0-9.]+ times as fast as without a plan', output)
    assert json.loads((folder / 'plan.json').read_text())['operators']


def test_folders():
    """Every folder of the package has its sentence, the package's folders are all that is in it."""
    described = [row[0].strip('`').rstrip('/') for row in table('folder of `mxhybrid`')]
    package = REPOSITORY / 'mxhybrid'
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob('*.py')} - {'.'}
    assert sorted(described) == sorted(folders)


def names_in(tree):
    """set of str: functions and classes of a module, its methods as class.method, and its variables."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {'%s.%s' % (node.name, inner.name) for inner in node.body if isinstance(inner, ast.FunctionDef)}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize('name', ['docs/architecture.md', 'docs/lane.md', 'CONTRIBUTING.md', 'tests/README.md'])
def test_files_that_pages_name(name):
    """Each file of the code that a page names exists, `folder/file.py`, and each function, `file.function()`."""
    page, package = PAGES[name], REPOSITORY / 'mxhybrid'
    quoted = set(re.findall(r'`([^`\n]+)`', without_code(page)))
    files = {name for name in quoted if re.fullmatch(r'([\w.]+/)+(\w+\.(py|h|cc|md|txt))?', name)}
    assert len(files) > 3
    tests = REPOSITORY / 'tests'
    homes = [package, REPOSITORY, tests, tests / 'unit', tests / 'parallel', tests / 'parallel' / 'training']
    assert not {name for name in files if not any((home / name).exists() for home in homes)}
    started = {word for command in quoted if command.startswith('scripts/') for word in command.split()
               if word.startswith(('scripts/', 'tests/'))}
    assert not {name for name in started if not (REPOSITORY / name).exists()}
    modules = {}
    for path in package.rglob('*.py'):
        modules.setdefault(path.stem, set()).update(names_in(ast.parse(path.read_text())))
    named = {name.rstrip('()') for name in quoted if re.fullmatch(r'\w+(\.\w+)+\(\)', name)}
    missing = {name for name in named if name.partition('.')[2] not in modules.get(name.partition('.')[0], ())}
    assert not missing, 'module.function() or module.Class.method() that are not there: %s' % sorted(missing)


def test_benchmark():
    """Workloads and contenders are listed, all of them, with the sizes that they have."""
    assert [row[0].strip('`') for row in table('`--contenders`')] == list(launching.CONTENDERS)
    listed = {row[0].strip('`'): row for row in table('`--workload`')}
    assert list(listed) == list(workloads.WORKLOADS) + list(model_steps.TASKS) + [training.NAME, cli.OVERHEAD] + list(
        layers.CASES) + [pipeline.NAME, plans.NAME, tables.NAME, recovery.NAME]
    for name, workload in workloads.WORKLOADS.items():
        assert listed[name][2] == '%.1f million' % (workload.dense_bytes / 4e6)
        for one in workload.tables:
            assert '{:,}'.format(one.width).replace(',', '') in listed[name][1].replace(',', '')


def test_reference():
    """docs/reference.md has all public names and no others, each with the object that has the name."""
    public = {'%s.%s' % (module.__name__, name): getattr(module, name)
              for module in (mxhybrid, mxhybrid.checkpoint, mxhybrid.elastic, mxhybrid.nn, mxhybrid.parallel,
                             mxhybrid.planner)
              for name in module.__all__ if not isinstance(getattr(module, name), types.ModuleType)}
    listed = dict(re.findall('### `(.*)`\n\n::: (.*)', PAGES['docs/reference.md']))
    assert set(listed) == set(public)
    for name, path in listed.items():
        module, _, attribute = path.rpartition('.')
        assert getattr(importlib.import_module(module), attribute) is public[name], name


def is_public(name):
    """Return whether a setting, an option of a command, or a name of the package is there."""
    words = name.replace('`', '').split()
    if words[0] == 'setting':
        return words[1].rstrip(',') in settings.DECLARED
    if words[0] == 'mxhybrid':
        parser = argparse.ArgumentParser()
        if words[1] in main.COMMANDS:
            importlib.import_module('mxhybrid.commands.' + words[1]).add_arguments(parser)
        return words[1] in main.COMMANDS and all(option in parser.format_help() for option in words[2:])
    try:
        return operator.attrgetter(words[0])(mxhybrid) is not None
    except AttributeError:
        return False


def test_changes():
    """docs/changes.md begins with this version; present names are there, and former ones are not."""
    assert re.search(r'^## ([\d.]+)', PAGES['docs/changes.md'], re.MULTILINE).group(1) == mxhybrid.__version__
    for former, present in table('former name'):
        assert is_public(present) and not is_public(former), (former, present)


def test_results():
    """The ratio after each figure of the README's table of exchanges compares it with the figure of mxhybrid, and the
    highest figure in each row of the table of training is bold, and no other one.
    """
    for _, ours, *others in table('setting'):
        for cell in others:
            pairs = re.findall(r'([\d.]+) \(([\d.]+)x\)', cell)
            assert [ratio for _, ratio in pairs] == ['%.1f' % (float(figure) / float(own)) for (figure, _), own in
                                                     zip(pairs, ours.split(', '))] and len(pairs) == ours.count(',') + 1
    assert len(table('setting')) == 5
    rows = table('hosts, link')
    for _, *cells in rows:
        figures = [float(cell.strip('*')) for cell in cells]
        assert [cell.startswith('**') for cell in cells] == [figure == max(figures) for figure in figures]
    assert len(rows) == 3


def test_cluster_file():
    """docs/planner.md shows a cluster file that can be loaded, and explains each of its keys."""
    cluster = cluster_spec.cluster_from_json(json.loads(written_cluster()))
    assert cluster.measured is None and cluster.ranks == 8 and cluster.hosts[1].speed == 1
    described = [key for row in table('key') for key in re.findall('`(.*?)`', row[0])]
    written = cluster.as_json()
    # A file lacks reference, speeds and memory_speeds where nobody measured them, and busy where nothing else ran.
    keys = {'format', 'measured', 'busy', 'reference.*', 'hosts[].speeds', 'hosts[].memory_speeds'}
    keys |= {'hosts[].' + key for key in written['hosts'][0]}
    keys |= {'%s.%s' % (way, key) for way in ('link', 'memory') for key in written[way]} | {'costs.*',
                                                                                          'costs.*.latency_s'}
    assert sorted(described) == sorted(keys)
    assert {row[0].strip('`'): row[1] for row in table('kind')} == cluster_spec.COST_KINDS


def test_layout():
    for row in table('path'):
        for path in re.findall(r'`(.*?)`', row[0]):
            assert (REPOSITORY / path).exists(), path


def test_an_optimizer_of_ones_own(folder):
    """The class of docs/compatibility.md in the minimal example, with servers that import it."""
    (folder / 'warm_adagrad.py').write_text(OWN)
    script = SCRIPT.replace('import mxhybrid', 'import mxhybrid\nimport warm_adagrad', 1)
    (folder / 'warm.py').write_text(script.replace("'adagrad'", "'warmadagrad'"))
    for command in ('horovodrun -np 2 --gloo python warm.py',
                    'python scripts/launch.py -n 2 -s 1 --launcher local python warm.py'):
        output = run(*parse(command), folder)
        assert len(re.findall(r'step 50, loss 0\.\d+\b', output)) == 1 and 'server weights' in output, output


@pytest.mark.parametrize('page, replaced, launcher, by', [
    ('docs/from-horovod.md', '', 'horovodrun -np 2 --gloo python', 'horovodrun -np 2 --gloo python'),
    # MXNet's local store does the work of the servers in a job of one worker.
    ('docs/from-dist-sync.md', "'dist_sync'", 'python', 'python'),
    ('docs/from-dist-sync.md', '', '', 'python scripts/launch.py -n 2 -s 1 --launcher local python')])
def test_scripts_of_other_stores(page, replaced, launcher, by, folder):
    """Both programs of a page, before and after the changes, print the same loss."""
    before, after = code_of(page)
    losses = []
    for program, command in ((before, launcher), (after, by)):
        if command:
            (folder / 'moved.py').write_text(program.replace(replaced, "'local'") if replaced else program)
            losses += re.findall(r'loss (0\.\d{4})', run(*parse(command + ' moved.py'), folder))
    assert len(losses) == (2 if launcher else 1) and len(set(losses)) == 1, losses


def test_optimizers():
    page = PAGES['docs/compatibility.md']
    section = page[page.index('These optimizers update'):page.index('## Your own optimizers')]
    items = [item.partition(':') for item in re.split(r'^- ', section, flags=re.MULTILINE)[1:]]
    sparse, elementwise, refused = (set(re.findall(r'`(\w+)`', text))
                                    for text in (items[0][0], items[1][0], items[2][2]))
    assert sparse == set(optimizers.SPARSE_KERNELS) - {'ccsgd'}  # another name of sgd
    assert elementwise == set(optimizers.ELEMENTWISE) - {'test'}  # MXNet's own, for its tests
    assert refused == set(Optimizer.opt_registry) - sparse - elementwise - {'ccsgd', 'test'}


# ------------------------------------------------------------------------------------------------------ links

def anchors(text):
    """set of str: where links into a page may lead, as GitHub names headings."""
    heads = re.findall(r'^#+ (.*)$', without_code(text), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', head.lower()).replace(' ', '-') for head in heads}


@pytest.mark.parametrize('page', PAGES)
def test_links(page):
    """Relative links lead to files, and to headings that are there."""
    for link in re.findall(r'\]\(([^)\s]*)\)', without_code(PAGES[page])):
        target, _, anchor = link.partition('#')
        if target.startswith('https://'):
            continue
        path = (REPOSITORY / page).parent / target if target else REPOSITORY / page
        assert path.exists(), link
        name = path.resolve().relative_to(REPOSITORY).as_posix()
        assert not anchor or anchor in anchors(PAGES[name]), link


def test_messages_that_are_explained():
    """Each message in docs/troubleshooting.md is one of the package's, or the page says that it is MXNet's."""
    constants = (node.value for path in (REPOSITORY / 'mxhybrid').rglob('*.py')
                 for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    texts = re.sub(r'%[-.0-9]*[a-z]', '…', '\n'.join(' '.join(value.split()) for value in constants
                                                     if isinstance(value, str)))
    explained = re.findall(r'^\*\*(`.*?`)\*\*\.?(.*?\.)\s', PAGES['docs/troubleshooting.md'], re.MULTILINE | re.DOTALL)
    assert len(explained) > 10
    for quotes, first_sentence in explained:
        for quote in re.findall('`(.*?)`', quotes):
            parts = [part.strip() for part in re.split(r"…|\d+(?: s)?|[(),:'=]", quote)]
            missing = [part for part in parts if ' ' in part and part not in texts]
            assert not missing or 'MXNet' in first_sentence, (quote, missing)


@pytest.mark.parametrize('index', ['docs/README.md', 'mkdocs.yml'])
def test_index(index):
    """Each index names every page once: the map of the docs, and the navigation of the site."""
    folder = (REPOSITORY / index).parent
    links = r'\]\(([^)#]*\.md)\)' if index.endswith('.md') else r'- (\S*\.md)$'
    starts = ('| [', '- [') if index.endswith('.md') else ' '
    lines = [line for line in (REPOSITORY / index).read_text().splitlines() if line.startswith(starts)]
    named = [(folder / link).resolve().relative_to(REPOSITORY).as_posix()
             for line in lines for link in re.findall(links, line)[:1]]
    expected = set(PAGES) - {index, 'README.md', 'docs/README.md', 'tests/README.md'}
    assert set(named) >= expected, expected - set(named)
    assert len(named) == len(set(named))


def test_no_paragraph_is_repeated():
    """No page repeats a paragraph of another page."""
    seen = {}
    for name, text in PAGES.items():
        for paragraph in without_code(text).split('\n\n'):
            words = ' '.join(paragraph.split())
            if len(words) > 80:
                assert words not in seen, (name, seen.get(words))
                seen[words] = name
