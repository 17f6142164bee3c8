"""The README keeps its word: every command in it is run or tied to a test that runs it, every table is checked.

A command that no check here knows fails, and so does a code block of an unknown language.
"""
import ast
import dataclasses
import importlib.util
import os
import re
import shlex
import shutil
import sys
import types

import jobs
import mxnet as mx
import pytest
import test_bench
import test_commands
import test_examples
import test_restarts
from jobs import REPOSITORY, TESTS
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding
from mxnet.optimizer import Optimizer

import mxhybrid
from mxhybrid import optimizers, settings
from mxhybrid.commands import main as mxhybrid_main

README = (REPOSITORY / 'README.md').read_text()
BLOCKS = re.findall(r'^```(\w*)\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
SCRIPT, RESUMED, LOOP = (text for language, text in BLOCKS if language == 'python')
SHELL = ('bash', 'console')

pytestmark = pytest.mark.timeout(150)


def commands():
    """list of str: every shell command, continued lines joined, comments gone."""
    found = []
    for language, text in BLOCKS:
        if language in SHELL:
            lines = text.replace('\\\n', ' ').splitlines()
            found += [shlex.join(words) for words in (shlex.split(line, comments=True) for line in lines) if words]
    return found


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
    """list of list of str: the rows of the table whose first column is called `head`."""
    lines = README.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith('| %s |' % head))
    rows = []
    for line in lines[at + 2:]:
        if not line.startswith('|'):
            return rows
        rows.append([cell.strip() for cell in line.strip('|').split('|')])
    raise AssertionError('the table runs to the end of the file')


def pinned():
    """set of str: ``name==version`` of all that scripts/install installs."""
    lines = (REPOSITORY / 'scripts' / 'requirements.txt').read_text().split('\n')
    return {line for line in lines if line and not line.startswith('#')}


# --------------------------------------------------------------------------------------------------- commands

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with the README's own train.py."""
    path = tmp_path_factory.mktemp('readme')
    (path / 'train.py').write_text(SCRIPT)
    return path


def run(env, words, folder):
    """Run a command as the README says, `python` and `horovodrun` being those of this environment."""
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
    assert weights[1:3] == ['server', 'weights'] and gradients[1:3] == ['own', 'rows']
    assert plan['net_score_weight'][1] == 'allreduce'
    servers = '0,1' if '2' in words or env.get('MXHYBRID_SERVERS_PER_HOST') == '2' else '0'
    partitions = ['8', '2'] if 'MXHYBRID_PARTITIONS' in env else [str(len(servers.split(',')))] * 2
    assert [weights[3:5], gradients[3:5]] == [[count, servers] for count in partitions]
    if 'scripts/launch.py' in words:
        sample = next(text for language, text in BLOCKS if language == 'text' and 'pulled/step' in text)
        assert sample in output, 'the README shows another report than its example prints'


def check_several_hosts(env, words, folder):
    """-H: tests/multihost runs that command line, between emulated hosts."""
    path = TESTS / 'multihost' / 'test_horovodrun_ssh.py'
    spec = importlib.util.spec_from_file_location('readme_multihost', str(path))
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    hosts = [types.SimpleNamespace(name=name) for name in ('hosta', 'hostb')]
    tested = as_typed(module.horovodrun(types.SimpleNamespace(hosts=hosts)))
    assert not env
    assert [re.sub('host[AB]', lambda name: name.group().lower(), word) for word in words[:-1]] == tested[:-1]
    assert (words[-1], tested[-1]) == ('train.py', 'tests/multihost/body_train.py')


def check_example(env, words, folder):
    """Examples: test_examples runs that command line, with arguments that make it small behind it."""
    tested = [as_typed(jobs.job_command(REPOSITORY / 'examples' / name, launcher, workers, servers, args))
              for name, launcher, workers, servers, args in test_examples.ALONE + test_examples.TOGETHER]
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
    """scripts/demo: test_examples runs it, without the installation, which comes first as the README says."""
    assert not env
    demo = (REPOSITORY / words[0]).read_text()
    assert os.access(str(REPOSITORY / words[0]), os.X_OK)
    install, run = demo.index('\nscripts/install\n'), demo.index('horovodrun" -np 2 ')
    assert install < run < demo.index('python" examples/word_lm.py ')


def check_bench(env, words, folder):
    """scripts/bench: test_bench runs it, here and in tests/multihost; its arguments are understood."""
    sys.path.insert(0, str(REPOSITORY / 'scripts'))
    try:
        from benchmark import cli
    finally:
        sys.path.remove(str(REPOSITORY / 'scripts'))
    assert not env
    cli.parse(words[1:])
    assert set(words[1:]) >= set(test_bench.SMALL[:7]) or '--no-network' not in words


def check_soak(env, words, folder):
    """scripts/soak: test_soak runs a short one; its arguments are understood."""
    from soaklib import cli

    assert cli.parse(words[1:]).steps > 0


def check_chaos(env, words, folder):
    """scripts/chaos: tests/multihost runs some of its cases; its arguments are understood and choose some."""
    paths = [str(REPOSITORY / 'scripts'), str(TESTS / 'multihost')]
    sys.path[:0] = paths
    try:
        from chaoslib import cases, cli
    finally:
        for path in paths:
            sys.path.remove(path)
    assert not env
    assert cases.select(cli.parse(words[1:]).only)


def check_test(env, words, folder):
    """scripts/test: runs this test, and .ci/run calls it."""
    assert not env
    assert '\nscripts/test\n' in (REPOSITORY / '.ci' / 'run').read_text()
    assert ' -m pytest ' in (REPOSITORY / 'scripts' / 'test').read_text()


def check_activate(env, words, folder):
    """The environment is where scripts/install makes it."""
    assert words == ['source', '.venv/bin/activate']
    assert '\nvenv=${MXHYBRID_VENV:-.venv}\n' in (REPOSITORY / 'scripts' / 'install').read_text()


def check_pip(env, words, folder):
    """Installation: what scripts/install does, with the versions that it takes."""
    install = (REPOSITORY / 'scripts' / 'install').read_text().replace('\\\n', ' ')
    assert words[:2] == ['pip', 'install']
    packages = {word for word in words[2:] if '==' in word}
    options = {word for word in words[2:] if word.startswith('--')}
    assert packages <= pinned()
    assert packages | options | {'-e', '.'} >= set(words[2:])
    names = {package.split('==')[0] for package in packages}
    if '.' in words:
        assert 'pip install --no-deps --no-build-isolation -e .\n' in install
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
    given = mxhybrid_main.make_parser().parse_args(words[1:])
    assert 'mxhybrid = mxhybrid.commands.main:main' in (REPOSITORY / 'setup.py').read_text()
    if given.command == 'selftest':
        assert callable(test_commands.test_selftest)  # runs it
        return
    if given.command == 'doctor':
        tests = (TESTS / 'unit' / 'test_doctor.py').read_text()
        assert '\ndef test_a_host_on_which_all_works' in tests  # runs it
        return
    if given.command == 'plot':
        assert (given.file, given.picture) == ('plan.json', 'plan.png')  # test_plan_file runs it
        return
    shutil.copy(str(TESTS / 'unit' / 'recorded' / 'steps.jsonl'), str(folder / 'steps.jsonl'))
    if importlib.util.find_spec('matplotlib') is None and '--png' in words:
        del words[words.index('--png'):]
    output = run(env, [sys.executable, '-m'] + words, folder)
    assert {'env': '- mxnet: 1.9.1 with', 'report': 'steps 1 to 50'}[given.command] in output


def check_doctor_of_hosts(env, words, folder):
    """The doctor over several hosts: tests/multihost runs it; its options are those of a training job."""
    assert not env
    training = next(parse(command)[1] for command in commands() if ' -H ' in command and command.endswith('train.py'))
    assert words == training[:-2] + ['mxhybrid', 'doctor']


def find_check(words):
    """The check for a command, None for a command that is not known."""
    if words in (['scripts/demo'], ['scripts/test']):
        return check_demo if words[0].endswith('demo') else check_test
    if words[0] == 'scripts/bench':
        return check_bench
    if words[0] == 'scripts/soak':
        return check_soak
    if words[0] == 'scripts/chaos':
        return check_chaos
    if words[0] == 'source':
        return check_activate
    if words[0] == 'pip':
        return check_pip
    if words[0] == 'mxhybrid':
        return check_tools
    if words[-2:] == ['mxhybrid', 'doctor']:
        return check_doctor_of_hosts
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
        pytest.fail('the README has a command that nothing tests; add a check for it here: ' + command)
    check(env, words, folder)


def test_unknown_commands_are_noticed():
    assert len(commands()) == len(set(commands())) > 10
    for command in ('rm -r .', 'horovodrun -np 4 python other.py', 'scripts/test -x', 'scripts/launch.py -n 2 true'):
        assert find_check(parse(command)[1]) is None


def test_languages_of_code_blocks():
    assert {language for language, _ in BLOCKS} <= {'bash', 'console', 'python', 'text'}
    assert README.count('\n```') == 2 * len(BLOCKS)
    first_words = {parse(command)[1][0] for command in commands()}
    for language, text in BLOCKS:
        if language == 'text':  # commands belong where they are tested
            assert not first_words & {line.split()[0] for line in text.splitlines() if line.strip()}


def test_loop_that_prefetches():
    net = gluon.Block()
    net.embedding = SparseEmbedding(10, 2)
    asked, batches = [], [(mx.nd.array([1]), mx.nd.array([0])), (mx.nd.array([2, 3]), mx.nd.array([1, 1]))]
    # Learning from a net is tested in tests/unit/test_feeds.py; here it takes the loop as it stands.
    recorded = types.SimpleNamespace(prefetching=lambda loader, wanted: mxhybrid.prefetching(
        loader, wanted if wanted is net else lambda batch: asked.append(wanted(batch)) or asked[-1]))
    exec(LOOP, {'mxhybrid': recorded, 'loader': batches, 'net': net})
    assert [(list(rows), list(rows.values())[0].asnumpy().tolist()) for rows in asked] == [
        ([net.embedding.weight], [2, 3])]


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
        words = {(): 'one per server', '': 'none', None: 'half of `timeout`', (('*', 'auto'),): 'auto'}
        assert default == words.get(value, value if isinstance(value, str) else '%g' % value
                                    if isinstance(value, (int, float)) else None)
        assert meaning
    forms = re.search(r"`(\{.*\})` or `'(.*)'`", described[0][3])
    assert (settings.resolve({'partitions': ast.literal_eval(forms.group(1))})
            == settings.resolve({'partitions': forms.group(2)}))
    forms = re.search(r"`(\{.*\})` or `'(.*)'`", next(row[3] for row in described if row[0] == '`routes`'))
    assert settings.resolve({'routes': ast.literal_eval(forms.group(1))}).route_for('embedding') == 'allreduce'
    assert settings.resolve({'routes': forms.group(2)}).route_for('embedding') == 'allreduce'


def imports(module, paths):
    """Modules of the package that one of them imports, but for what it does as a program."""
    tree = ast.parse(paths[module].read_text())
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and '__name__' in ast.dump(node.test))]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = module.split('.')[:-node.level] + (node.module.split('.') if node.module else [])
            names = ['.'.join(base)] if node.module else ['.'.join(base + [alias.name]) for alias in node.names]
            yield from (name for name in names if name in paths)


def test_modules():
    """All modules are listed, each above those that it imports."""
    order = [row[0].strip('`') for row in table('module of `mxhybrid`')]
    package = REPOSITORY / 'mxhybrid'
    paths = {'.'.join(path.relative_to(package).with_suffix('').parts): path for path in package.rglob('*.py')}
    del paths['commands.__init__']  # says what is in the folder
    assert sorted(order) == sorted(paths)
    for at, module in enumerate(order):
        found = set(imports(module, paths))
        assert found <= set(order[at + 1:]), '%s imports %s' % (module, ', '.join(found))


def test_benchmark():
    """Workloads and contenders are listed, all of them, with the sizes that they have."""
    sys.path.insert(0, str(REPOSITORY / 'scripts'))
    try:
        from benchmark import cli, launching, training, workloads
    finally:
        sys.path.remove(str(REPOSITORY / 'scripts'))
    assert [row[0].strip('`') for row in table('`--contenders`')] == list(launching.CONTENDERS)
    listed = {row[0].strip('`'): row for row in table('`--workload`')}
    assert list(listed) == list(workloads.WORKLOADS) + [training.NAME, cli.OVERHEAD]
    for name, workload in workloads.WORKLOADS.items():
        assert listed[name][2] == '%.1f million' % (workload.dense_bytes / 4e6)
        for one in workload.tables:
            assert '{:,}'.format(one.width).replace(',', '') in listed[name][1].replace(',', '')


def test_layout():
    for row in table('path'):
        for path in re.findall(r'`(.*?)`', row[0]):
            assert (REPOSITORY / path).exists(), path


def test_optimizers():
    section = README[README.index('Optimizers of a server-held'):README.index('## Correctness')]
    items = [item.partition(':') for item in re.split(r'^- ', section, flags=re.MULTILINE)[1:]]
    sparse, elementwise, refused = (set(re.findall(r'`(\w+)`', text))
                                    for text in (items[0][0], items[1][0], items[2][2]))
    assert sparse == set(optimizers.SPARSE_KERNELS) - {'ccsgd'}  # another name of sgd
    assert elementwise == set(optimizers.ELEMENTWISE)
    assert refused == set(Optimizer.opt_registry) - sparse - elementwise - {'ccsgd', 'test'}
