"""The documentation is correct: each command is run, or tied to a test that runs it; tables and links are checked.

A command for which there is no check fails, and so does a code block of an unknown language.
"""
import ast
import dataclasses
import json
import os
import re
import shlex
import shutil
import sys
import types

import mxnet as mx
import pytest
from lab import jobs, reports
from lab.launchers import REPOSITORY, job_command
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding
from mxnet.optimizer import Optimizer

import mxhybrid
from mxhybrid.base import settings
from mxhybrid.commands import main as mxhybrid_main
from mxhybrid.native import optimizers
from mxhybrid.planner.cluster import cluster_spec

from ...multihost import test_horovodrun_ssh
from ..commands import test_bench, test_commands
from ..launchers import test_restarts
from ..planner import test_planner
from . import test_examples

PAGES = {path.relative_to(REPOSITORY).as_posix(): path.read_text()
         for path in [REPOSITORY / name for name in ('README.md', 'CONTRIBUTING.md', 'tests/README.md')]
         + sorted((REPOSITORY / 'docs').glob('*.md'))}
SHELL = ('bash', 'console')


def blocks_of(text):
    """list of (str, str): language and text of every code block."""
    return re.findall(r'^```(\w*)\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)


def only_python(page):
    """str: the one Python program of a page."""
    program, = (text for language, text in blocks_of(PAGES[page]) if language == 'python')
    return program


def first_python(page):
    """str: the first Python program of a page."""
    return next(text for language, text in blocks_of(PAGES[page]) if language == 'python')


BLOCKS = [block for text in PAGES.values() for block in blocks_of(text)]
SCRIPT, RESUMED = only_python('README.md'), first_python('docs/checkpoints.md')
LOOP, OWN = only_python('docs/routes.md'), only_python('docs/compatibility.md')

pytestmark = pytest.mark.timeout(150)


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
        elif os.path.dirname(word) == os.path.dirname(sys.executable):
            word = os.path.basename(word)
        words.append(word.replace(str(REPOSITORY) + '/', ''))
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


# --------------------------------------------------------------------------------------------------- commands

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with the README's train.py."""
    path = tmp_path_factory.mktemp('docs')
    (path / 'train.py').write_text(SCRIPT)
    return path


def run(env, words, folder):
    """Run a command as it stands, `python` and `horovodrun` being those of this environment."""
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']
    words = [str(REPOSITORY / word) if word.startswith('scripts/') else word for word in words]
    with jobs.start_command(words, env=dict(env, PATH=path), cwd=folder) as job:
        return job.wait(timeout=120).ok().output


def check_training(env, words, folder):
    """Any launcher, with train.py: run as it stands."""
    output = run(env, words, folder)
    assert len(re.findall(r'step 50, loss 0\.0\d\d\b', output)) == 1, output
    workers = 4 if '4' in words else 1
    report = output[output.rindex('mxhybrid: 4 workers' if workers == 4 else 'mxhybrid: one process'):]
    plan = {words[0]: words[1:] for words in (line.replace('[0]<stdout>:', '').split()
                                              for line in report.splitlines()) if words}
    weights, gradients = plan['net_words_weight'], plan['net_bins_weight']
    if workers == 1:
        assert weights[1] == gradients[1] == plan['net_score_weight'][1] == 'local'
        return
    assert weights[1:3] == ['server', 'weights'] and gradients[1:3] == ['on-demand', 'rows']
    assert plan['net_score_weight'][1] == 'allreduce'
    servers = '0,1' if '2' in words or env.get('MXHYBRID_SERVERS_PER_HOST') == '2' else '0'
    partitions = ['8', '2'] if 'MXHYBRID_PARTITIONS' in env else [str(len(servers.split(',')))] * 2
    assert [weights[3:5], gradients[3:5]] == [[count, servers] for count in partitions]
    if 'scripts/launch.py' in words:
        sample = next(text for language, text in BLOCKS if language == 'text' and 'pulled/step' in text)
        assert sample in output, 'docs/observing.md shows another report than the example prints'


def check_several_hosts(env, words, folder):
    """-H: tests/multihost runs that command line, between emulated hosts."""
    tested = as_typed(test_horovodrun_ssh.horovodrun())
    assert not env
    assert [re.sub('host[AB]', lambda name: name.group().lower(), word) for word in words[:-1]] == tested[:-1]
    assert (words[-1], tested[-1]) == ('train.py', 'tests/multihost/bodies/train.py')


def check_example(env, words, folder):
    """Examples: test_examples runs that command line, with arguments that make it small after it."""
    tested = [as_typed(job_command(REPOSITORY / 'examples' / name, launcher, workers, servers, args))
              for name, launcher, workers, servers, args, *_ in (
                  test_examples.ALONE + test_examples.TOGETHER + test_examples.SPLIT + test_examples.TRANSFORMERS
                  + test_examples.CLICK_JOBS + [test_examples.SEARCHED])]
    assert not env
    assert words in tested


def check_restart(env, words, folder):
    """Jobs that are started again: test_restarts runs those command lines, with a small model."""
    launcher = 'launch.py' if 'scripts/launch.py' in words else 'horovodrun'
    tested = as_typed(test_restarts.command_line(launcher, 3, ['--checkpoint', 'run', '--resume']))
    if launcher == 'horovodrun':
        del tested[tested.index('horovodrun') - 1]  # the interpreter that runs it
    assert not env
    assert words == tested


def check_demo(env, words, folder):
    """scripts/demo: test_examples runs it, without the installation, which comes first."""
    assert not env
    demo = (REPOSITORY / words[0]).read_text()
    assert os.access(str(REPOSITORY / words[0]), os.X_OK)
    install, run = demo.index('\nscripts/install\n'), demo.index('horovodrun" -np 2 ')
    assert install < run < demo.index('python" examples/word_lm.py ')


def check_bench(env, words, folder):
    """scripts/bench: test_bench runs it, here and in tests/multihost; its arguments are understood."""
    from lab.benchmark import cli

    assert not env
    cli.parse(words[1:])
    assert set(words[1:]) >= set(test_bench.SMALL[:7]) or '--shrink' not in words


def check_soak(env, words, folder):
    """scripts/soak: test_soak runs a short one; its arguments are understood."""
    from lab.soak import cli

    assert cli.parse(words[1:]).steps > 0


def check_fuzz(env, words, folder):
    """scripts/fuzz: test_fuzz runs a sample; its arguments are understood."""
    from lab.fuzz import cli
    from lab.fuzz.networks import cli as networks

    if words[1:2] == ['networks']:
        assert networks.parse(words[2:]).count > 0
    else:
        assert cli.parse(words[1:]).programs > 0


def check_chaos(env, words, folder):
    """scripts/chaos: tests/multihost runs some of its cases; its arguments are understood and choose some."""
    from lab.chaos import cases, cli

    assert not env
    assert cases.select(cli.parse(words[1:]).only)


def check_test(env, words, folder):
    """scripts/test: runs this test, and .ci/run calls it; its first lines have the same arguments, or another path."""
    assert not env
    assert '\nscripts/test ' in (REPOSITORY / '.ci' / 'run').read_text()
    assert ' -m pytest ' in (REPOSITORY / 'scripts' / 'test').read_text()


def check_docs(env, words, folder):
    """scripts/docs: .ci/run runs it."""
    assert not env
    assert '\nnice scripts/docs >' in (REPOSITORY / '.ci' / 'run').read_text()
    assert os.access(str(REPOSITORY / 'scripts' / 'docs'), os.X_OK)


def check_debugging(env, words, folder):
    """A body that is started by hand: it exists, and the settings that keep its job from ending are settings."""
    if words[0] == 'export':
        names = {word.partition('=')[0] for word in words[1:]}
        assert names - {'PYTHONPATH', reports.DIRECTORY} <= {settings.variable(name) for name in settings.DECLARED}
        return
    body, = (word for word in words if '/bodies/' in word)
    assert (REPOSITORY / body).is_file()
    tested = as_typed(job_command(REPOSITORY / body, 'none' if '-m' in words else 'horovodrun', workers=3
                                  if '-np' in words else None, args=words[words.index(body) + 1:]))
    assert [os.path.basename(word) for word in words if word not in ('-m', 'pdb')] == [
        os.path.basename(word) for word in tested]


def check_install(env, words, folder):
    """scripts/install for a build of MXNet: scripts/test --cuda makes that installation, and scripts/gpu takes it."""
    build = env.pop('MXHYBRID_MXNET')
    assert not env
    for name in ('test', 'gpu'):
        assert ' MXHYBRID_MXNET=${MXHYBRID_MXNET:-%s}' % build in (REPOSITORY / 'scripts' / name).read_text()
    assert ' %s ' % build in (REPOSITORY / 'scripts' / 'install').read_text()


def check_gpu(env, words, folder):
    """scripts/gpu: test_gpu_script runs all commands that need no GPU; the help of the script names the same arguments.
    """
    assert not env
    told = re.findall(r'^#   (scripts/gpu.*?)  ', (REPOSITORY / 'scripts' / 'gpu').read_text(), re.MULTILINE)
    assert ' '.join(words) in told


def check_activate(env, words, folder):
    """The environment is where scripts/install makes it."""
    assert words == ['source', '.venv/bin/activate']
    assert '\nvenv=${MXHYBRID_VENV:-.venv}\n' in (REPOSITORY / 'scripts' / 'install').read_text()


def check_pip(env, words, folder):
    """Installation: the steps of scripts/install, with the same versions."""
    install = (REPOSITORY / 'scripts' / 'install').read_text().replace('\\\n', ' ')
    assert words[:2] == ['pip', 'install']
    packages = {word for word in words[2:] if '==' in word}
    options = {word for word in words[2:] if word.startswith('--')}
    assert packages <= pinned()
    assert packages | options | {'-e', '.'} >= set(words[2:])
    names = {package.split('==')[0] for package in packages}
    if '.' in words:
        assert ' install --no-deps --no-build-isolation -e . ' in install
        assert options == {'--no-build-isolation'}
    elif names == {'horovod'}:
        line = next(line for line in install.splitlines() if line.strip().startswith('CMAKE'))
        expected, tested = parse(line.strip().split(' "$(pinned')[0])
        assert env == expected
        assert options <= set(tested)
    else:
        assert not env and not options
        assert names in ({'setuptools', 'wheel', 'numpy'}, {'mxnet'})


def check_build(env, words, folder):
    """horovodrun --check-build: run as it stands."""
    output = run(env, words, folder)
    assert '[X] MXNet' in output and '[X] Gloo' in output


def check_tools(env, words, folder):
    """The command mxhybrid: run as it stands, but for the hosts, on files that the tests have."""
    assert not env
    options = mxhybrid_main.make_parser().parse_args(words[1:])
    assert 'mxhybrid = mxhybrid.commands.main:main' in (REPOSITORY / 'setup.py').read_text()
    if options.command == 'selftest':
        assert callable(test_commands.test_selftest)  # runs it
        return
    if options.command == 'doctor':
        tests = (REPOSITORY / 'tests' / 'unit' / 'commands' / 'test_doctor.py').read_text()
        assert '\ndef test_a_host_on_which_all_works' in tests  # runs it
        return
    if options.command == 'plan':
        (folder / 'nets.py').write_text(test_planner.NETS)
        (folder / 'cluster.json').write_text(written_cluster())
        output = run(env, [sys.executable, '-m'] + words + ['--profiles', 'profiles.json'], folder)
        assert ('predicted to be' if options.cluster else 'batch / by layer') in output
        return
    if options.command == 'partitions':
        assert (options.file, options.picture) == ('partitions.json', 'partitions.png')  # test_partition_cache runs it
        return
    if options.command == 'checkpoint':
        assert (options.action, options.directory) == ('compact', 'checkpoints')  # tests/unit/checkpoint runs it
        return
    shutil.copy(str(REPOSITORY / 'tests/unit/commands/recorded/steps.jsonl'), str(folder / 'steps.jsonl'))
    output = run(env, [sys.executable, '-m'] + words, folder)
    assert {'env': '- mxnet: 1.9.1 with', 'report': 'steps 1 to 50'}[options.command] in output


def check_doctor_of_hosts(env, words, folder):
    """The doctor over several hosts: tests/multihost runs it; its options are those of a training job."""
    assert not env
    training = next(parse(command)[1] for command in commands() if ' -H ' in command and command.endswith('train.py'))
    assert words == training[:-2] + ['mxhybrid', 'doctor']


def check_calibration(env, words, folder):
    """The calibration of hosts: tests/multihost runs it; its options are those of a training job."""
    assert not env
    training = next(parse(command)[1] for command in commands() if ' -H ' in command and command.endswith('train.py'))
    assert words == training[:-2] + ['mxhybrid', 'calibrate', 'cluster.json']
    tests = (REPOSITORY / 'tests' / 'multihost' / 'test_calibration.py').read_text()
    assert "['-m', 'mxhybrid', 'calibrate', path]" in tests


def find_check(words):
    """The check for a command, None for a command that is not known."""
    if words == ['scripts/demo']:
        return check_demo
    if words[0] == 'scripts/test':
        told = re.findall(r'^#   (scripts/test.*?)   ', (REPOSITORY / 'scripts' / 'test').read_text(), re.MULTILINE)
        words = ['tests/unit' if word.startswith('tests/') and (REPOSITORY / word).exists() else word for word in words]
        return check_test if ' '.join(words) in ['scripts/test'] + told else None
    if words == ['scripts/docs']:
        return check_docs
    if words[0] == 'export' or words[0].startswith('.venv/bin/') and '/bodies/' in ' '.join(words):
        return check_debugging
    if words[0] == 'scripts/bench':
        return check_bench
    if words[0] == 'scripts/soak':
        return check_soak
    if words[0] == 'scripts/fuzz':
        return check_fuzz
    if words[0] == 'scripts/chaos':
        return check_chaos
    if words == ['scripts/install']:
        return check_install
    if words[0] == 'scripts/gpu':
        return check_gpu
    if words[0] == 'source':
        return check_activate
    if words[0] == 'pip':
        return check_pip
    if words[0] == 'mxhybrid':
        return check_tools
    if words[-2:] == ['mxhybrid', 'doctor']:
        return check_doctor_of_hosts
    if words[-3:-1] == ['mxhybrid', 'calibrate']:
        return check_calibration
    if words == ['horovodrun', '--check-build']:
        return check_build
    if 'scripts/restart.py' in words or '--restarts' in words:
        return check_restart
    if any(word.startswith('examples/') for word in words):
        return check_example
    if words[-2:] == ['python', 'train.py']:
        return check_several_hosts if '-H' in words else check_training
    return None


@pytest.mark.parametrize('command', commands())
def test_command(command, folder):
    env, words = parse(command)
    check = find_check(words)
    if check is None:
        pytest.fail('a command that nothing tests; add a check for it here: ' + command)
    check(env, words, folder)


def test_unknown_commands_are_noticed():
    assert len(commands()) == len(set(commands())) > 10
    for command in ('rm -r .', 'horovodrun -np 4 python other.py', 'scripts/test -x', 'scripts/launch.py -n 2 true'):
        assert find_check(parse(command)[1]) is None


def test_languages_of_code_blocks():
    assert {language for language, _ in BLOCKS} <= {'bash', 'console', 'json', 'mermaid', 'python', 'text'}
    assert sum(text.count('\n```') for text in PAGES.values()) == 2 * len(BLOCKS)
    first_words = {parse(command)[1][0] for command in commands()}
    for language, text in BLOCKS:
        assert language != 'mermaid' or ';' not in text, 'mermaid ends a statement there'
        if language == 'text':  # commands belong where they are tested
            assert not first_words & {line.split()[0] for line in text.splitlines() if line.strip()}


def test_loop_that_prefetches():
    net = gluon.Block()
    net.embedding = SparseEmbedding(10, 2)
    asked, batches = [], [(mx.nd.array([1]), mx.nd.array([0])), (mx.nd.array([2, 3]), mx.nd.array([1, 1]))]
    # Learning from a net is tested in tests/unit/test_embedding_inputs.py; here it takes the loop as it stands.
    recorded = types.SimpleNamespace(prefetching=lambda loader, wanted: mxhybrid.prefetching(
        loader, wanted if wanted is net else lambda batch: asked.append(wanted(batch)) or asked[-1]))
    exec(LOOP, {'mxhybrid': recorded, 'loader': batches, 'net': net})
    assert [(list(rows), list(rows.values())[0].asnumpy().tolist()) for rows in asked] == [
        ([net.embedding.weight], [2, 3])]


def test_net_with_dynamic_tables(capsys):
    exec(only_python('docs/embeddings.md'), {'__name__': '__main__'})
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


# ----------------------------------------------------------------------------------------------------- tables

def test_settings():
    described = table('keyword')
    fields = dataclasses.fields(settings.Settings)
    assert [row[0] for row in described] == ['`%s`' % field.name for field in fields]
    for (_, variable, default, meaning), field in zip(described, fields):
        assert variable == '`%s`' % settings.variable(field.name)
        value = field.default
        words = {(): {'routes': 'auto', 'storage': 'memory', 'storage_memory': 'no limit',
                      'staleness': '0'}.get(
            field.name, 'one per server'), '': 'none', None: 'half of `timeout`', (('*', 'float32'),): 'float32'}
        assert default == words.get(value, value if isinstance(value, str) else '%.12g' % value
                                    if isinstance(value, (int, float)) else None)
        # The page adds links.
        plain = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', meaning)
        assert plain == settings.DECLARED[field.name].meaning
    scopes = {scope: {name for name, one in settings.DECLARED.items() if one.scope == scope}
              for scope in (settings.ALL, settings.WORKER_0)}
    text = PAGES['docs/settings.md'].partition('| keyword |')[0]
    assert set(re.findall('`([a-z_]+)`', re.search(r'comes last\.(.*?)must be\s+equal', text, re.DOTALL).group(1))) == (
        scopes[settings.ALL])
    assert set(re.findall('`([a-z_]+)`', re.search(r'order\.(.*?)applies\.', text, re.DOTALL).group(1))) == (
        scopes[settings.WORKER_0])
    forms = re.search(r"`(\{.*\})` or `'(.*)'`", described[0][3])
    assert (settings.resolve({'partitions': ast.literal_eval(forms.group(1))})
            == settings.resolve({'partitions': forms.group(2)}))
    forms = re.search(r"`(\{.*\})` or `'(.*)'`", next(row[3] for row in described if row[0] == '`routes`'))
    assert settings.resolve({'routes': ast.literal_eval(forms.group(1))}).route_for('embedding') == 'allreduce'
    assert settings.resolve({'routes': forms.group(2)}).route_for('embedding') == 'allreduce'


def test_search_from_python(folder):
    program, = (text for language, text in blocks_of(PAGES['docs/planner.md'])
                if language == 'python' and 'planner.search' in text)
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
    quoted = set(re.findall(r'`([^`\n]+)`', re.sub(r'^```.*?^```$', '', page, flags=re.MULTILINE | re.DOTALL)))
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
    from lab.benchmark import cli, launching, layers, pipeline, plans, tables, training, workloads

    assert [row[0].strip('`') for row in table('`--contenders`')] == list(launching.CONTENDERS)
    listed = {row[0].strip('`'): row for row in table('`--workload`')}
    assert list(listed) == list(workloads.WORKLOADS) + [training.NAME, cli.OVERHEAD] + list(layers.CASES) + [
        pipeline.NAME, plans.NAME, tables.NAME]
    for name, workload in workloads.WORKLOADS.items():
        assert listed[name][2] == '%.1f million' % (workload.dense_bytes / 4e6)
        for one in workload.tables:
            assert '{:,}'.format(one.width).replace(',', '') in listed[name][1].replace(',', '')


def test_results():
    """The ratio after each figure of the README's table compares it with the first figure."""
    for _, _, ours, *others in table('setting'):
        for figure, ratio in (re.fullmatch(r'([\d.]+) \(([\d.]+)x\)', cell).groups() for cell in others):
            assert ratio == '%.1f' % (float(figure) / float(ours))
    assert len(table('setting')) > 5


def written_cluster():
    """str: the cluster file that docs/planner.md shows."""
    text, = (text for language, text in blocks_of(PAGES['docs/planner.md']) if language == 'json')
    return text


def test_cluster_file():
    """docs/planner.md shows a cluster file that can be loaded, and explains each of its keys."""
    found = cluster_spec.cluster_from_json(json.loads(written_cluster()))
    assert found.measured is None and found.ranks == 8 and found.hosts[1].speed == 1
    described = [key for row in table('key') for key in re.findall('`(.*?)`', row[0])]
    written = found.as_json()
    # Two are left out where they are not known.
    keys = {'format', 'measured', 'reference.*', 'hosts[].speeds'} | {'hosts[].' + key for key in written['hosts'][0]}
    keys |= {'%s.%s' % (way, key) for way in ('link', 'memory') for key in written[way]} | {'costs.*',
                                                                                          'costs.*.latency_s'}
    assert sorted(described) == sorted(keys)
    assert {row[0].strip('`'): row[1] for row in table('kind')} == cluster_spec.COST_KINDS


def test_layout():
    for row in table('path'):
        for path in re.findall(r'`(.*?)`', row[0]):
            assert (REPOSITORY / path).exists(), path


def test_an_optimizer_of_ones_own(folder):
    """The class of docs/compatibility.md in the README's script, with servers that import it."""
    (folder / 'warm_adagrad.py').write_text(OWN)
    script = SCRIPT.replace('import mxhybrid', 'import mxhybrid\nimport warm_adagrad', 1)
    (folder / 'warm.py').write_text(script.replace("'adagrad'", "'warmadagrad'"))
    for command in ('horovodrun -np 2 --gloo python warm.py',
                    'python scripts/launch.py -n 2 -s 1 --launcher local python warm.py'):
        output = run(*parse(command), folder)
        assert len(re.findall(r'step 50, loss 0\.\d+\b', output)) == 1 and 'server weights' in output, output


@pytest.mark.parametrize('page, replaced, launcher, by', [
    ('docs/from-horovod.md', '', 'horovodrun -np 2 --gloo python', 'horovodrun -np 2 --gloo python'),
    # In a job of one worker, MXNet's local store does the work of its servers.
    ('docs/from-dist-sync.md', "'dist_sync'", 'python', 'python'),
    ('docs/from-dist-sync.md', '', '', 'python scripts/launch.py -n 2 -s 1 --launcher local python')])
def test_scripts_of_other_stores(page, replaced, launcher, by, folder):
    """Both programs of a page, before and after the changes, print the same loss."""
    before, after = (text for language, text in blocks_of(PAGES[page]) if language == 'python')
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
    heads = re.findall(r'^#+ (.*)$', re.sub(r'^```.*?^```$', '', text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', head.lower()).replace(' ', '-') for head in heads}


@pytest.mark.parametrize('page', PAGES)
def test_links(page):
    """Relative links lead to files, and to headings that are there."""
    text = re.sub(r'^```.*?^```$', '', PAGES[page], flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r'\]\(([^)\s]*)\)', text)
    for link in found:
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


@pytest.mark.parametrize('index', ['README.md', 'docs/README.md', 'mkdocs.yml'])
def test_index(index):
    """Each index names every page once: the README, the map of the docs, and the navigation of the site."""
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
        for paragraph in re.sub(r'^```.*?^```$', '', text, flags=re.MULTILINE | re.DOTALL).split('\n\n'):
            words = ' '.join(paragraph.split())
            if len(words) > 80:
                assert words not in seen, (name, seen.get(words))
                seen[words] = name
