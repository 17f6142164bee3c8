"""Every command of the documentation is run, or tied to a test that runs it.

A command for which there is no check fails.
"""
import os
import re
import shutil
import sys

import pytest
from lab import reports
from lab.launchers import REPOSITORY, job_command

from mxhybrid.base import settings
from mxhybrid.commands import main as mxhybrid_main

from ...helpers.pages import BLOCKS, as_typed, commands, parse, pinned, run, written_cluster
from ...multihost import test_elastic_hosts, test_horovodrun_ssh
from ...unit.checkpoint import test_exporting
from ..commands import test_bench, test_commands, test_package
from ..launchers import test_restarts
from ..planner import test_planner
from . import test_examples

pytestmark = pytest.mark.timeout(150)


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
        sample = next(text for language, text in BLOCKS if language == 'text' and 'net_bins_weight' in text)
        # launch.py puts the rank before each line, except those before the workers have joined.
        assert sample in re.sub(r'(?m)^\[0\]<std(out|err)>:', '', output), (
            'docs/observing.md shows another report than the example prints')


def check_several_hosts(env, words, folder):
    """-H: tests/multihost runs that command line, between emulated hosts."""
    tested = as_typed(test_horovodrun_ssh.horovodrun())
    assert [re.sub('host[AB]', lambda name: name.group().lower(), word) for word in words[:-1]] == tested[:-1]
    assert (words[-1], tested[-1]) == ('train.py', 'tests/multihost/bodies/train.py')


def check_example(env, words, folder):
    """Examples: test_examples runs that command line, with arguments that make it small after it."""
    tested = [as_typed(job_command(REPOSITORY / 'examples' / name, launcher, workers, servers, args))
              for name, launcher, workers, servers, args, *_ in (
                  test_examples.ALONE + test_examples.TOGETHER + test_examples.SPLIT + test_examples.TRANSFORMERS
                  + test_examples.CLICK_JOBS + test_examples.SERVED + [test_examples.SEARCHED])]
    assert words in tested


def check_restart(env, words, folder):
    """Jobs that are started again: test_restarts runs those command lines, with a small model."""
    launcher = 'launch.py' if 'scripts/launch.py' in words else 'run'
    tested = as_typed(test_restarts.command_line(launcher, 3, ['--checkpoint', 'run', '--resume']))
    assert words == tested


def check_elastic(env, words, folder):
    """A job on several hosts: tests/multihost/test_elastic_hosts.py runs it, with a small model."""
    tested = as_typed(test_elastic_hosts.word_lm_command(['hosta', 'hostb', 'hostc', 'hostd']))
    assert [re.sub('host[A-D]', lambda name: name.group().lower(), word) for word in words] == tested[:len(words)]


def check_demo(env, words, folder):
    """scripts/demo: test_examples runs it, without the installation, which comes first."""
    demo = (REPOSITORY / words[0]).read_text()
    assert os.access(str(REPOSITORY / words[0]), os.X_OK)
    install, run = demo.index('\nscripts/install\n'), demo.index('horovodrun" -np 2 ')
    assert install < run < demo.index('python" examples/word_lm.py ')


def check_bench(env, words, folder):
    """scripts/bench: test_bench runs it, here and in tests/multihost; its arguments are understood."""
    from lab.benchmark import cli

    cli.parse(words[1:])
    assert set(words[1:]) >= set(test_bench.SMALL[:7]) or '--shrink' not in words


def check_soak(env, words, folder):
    """scripts/soak: test_scripts runs a short one; its arguments are understood."""
    from lab.soak import cli

    assert cli.parse(words[1:]).steps > 0


def check_fuzz(env, words, folder):
    """scripts/fuzz: test_fuzz runs a sample; its arguments are understood."""
    from lab.fuzz import cli

    assert cli.parse(words[1:]).programs > 0


def check_chaos(env, words, folder):
    """scripts/chaos: tests/multihost runs some of its cases; its arguments are understood and choose some."""
    from lab.chaos import cases, cli

    assert cases.select(cli.parse(words[1:]).only)


def check_test(env, words, folder):
    """scripts/test: runs this test, and .ci/run calls it; its first lines have the same arguments, or another path."""
    assert '\nscripts/test ' in (REPOSITORY / '.ci' / 'run').read_text()
    assert ' -m pytest ' in (REPOSITORY / 'scripts' / 'test').read_text()


def check_docs(env, words, folder):
    """scripts/docs: .ci/run runs it."""
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
    (variable, build), = env.items()
    assert variable == 'MXHYBRID_MXNET'
    for name in ('test', 'gpu'):
        assert ' MXHYBRID_MXNET=${MXHYBRID_MXNET:-%s}' % build in (REPOSITORY / 'scripts' / name).read_text()
    assert ' %s ' % build in (REPOSITORY / 'scripts' / 'install').read_text()


def check_gpu(env, words, folder):
    """scripts/gpu: test_scripts runs all commands that need no GPU; the help of the script names the same arguments.
    """
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
    if words[2:] == ['dist/mxhybrid-*.whl']:
        assert callable(test_package.test_selftest)  # installs it
        return
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


def check_wheel(env, words, folder):
    """python -m build: test_package runs it."""
    assert callable(test_package.test_files)


def check_build(env, words, folder):
    """horovodrun --check-build: run as it stands."""
    output = run(env, words, folder)
    assert '[X] MXNet' in output and '[X] Gloo' in output


def check_tools(env, words, folder):
    """The command mxhybrid: run as it stands, but for the hosts, on files that the tests have."""
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
        assert (options.action, options.directory) in (('compact', 'checkpoints'), ('export', 'checkpoints'))
        assert test_exporting.test_memory_of_the_command_is_bounded  # tests/unit/checkpoint runs both
        return
    shutil.copy(str(REPOSITORY / 'tests/unit/commands/recorded/steps.jsonl'), str(folder / 'steps.jsonl'))
    output = run(env, [sys.executable, '-m'] + words, folder)
    assert {'env': '- mxnet: 1.9.1 with', 'report': 'steps 1 to 50'}[options.command] in output


def check_hosts(env, words, folder):
    """The doctor and the calibration of several hosts: tests/multihost runs both; options are those of a training job.
    """
    training = next(parse(command)[1] for command in commands() if ' -H ' in command and command.endswith('train.py'))
    assert words in [training[:-2] + tested for tested in (
        ['mxhybrid', 'doctor'], ['mxhybrid', 'calibrate', 'cluster.json'])]
    tests = (REPOSITORY / 'tests' / 'multihost' / 'test_calibration.py').read_text()
    assert "['-m', 'mxhybrid', 'calibrate', path]" in tests


#: Checks by the whole command, and by its first word.
EXACT = {'scripts/demo': check_demo, 'scripts/docs': check_docs, 'scripts/install': check_install,
         'python -m build': check_wheel, 'horovodrun --check-build': check_build}
BY_PROGRAM = {'export': check_debugging, 'scripts/bench': check_bench, 'scripts/soak': check_soak,
              'scripts/fuzz': check_fuzz, 'scripts/chaos': check_chaos, 'scripts/gpu': check_gpu,
              'source': check_activate, 'pip': check_pip}


def find_check(words):
    """The check for a command, None for a command that is not known."""
    known = EXACT.get(' '.join(words)) or BY_PROGRAM.get(words[0])
    if known:
        return known
    if words[0] == 'scripts/test':
        told = re.findall(r'^#   (scripts/test.*?)   ', (REPOSITORY / 'scripts' / 'test').read_text(), re.MULTILINE)
        words = ['tests/unit' if word.startswith('tests/') and (REPOSITORY / word).exists() else word for word in words]
        return check_test if ' '.join(words) in ['scripts/test'] + told else None
    if words[0].startswith('.venv/bin/') and '/bodies/' in ' '.join(words):
        return check_debugging
    if words[:2] == ['mxhybrid', 'run'] or '--reset-limit' in words:
        return check_elastic if '--elastic' in words else check_restart
    if words[0] == 'mxhybrid':
        return check_tools
    if words[-2:] == ['mxhybrid', 'doctor'] or words[-3:-1] == ['mxhybrid', 'calibrate']:
        return check_hosts
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
    assert not env or check in (check_training, check_install, check_pip)
    check(env, words, folder)


def test_unknown_commands_are_noticed():
    assert len(commands()) == len(set(commands())) > 10
    for command in ('rm -r .', 'horovodrun -np 4 python other.py', 'scripts/test -x', 'scripts/launch.py -n 2 true'):
        assert find_check(parse(command)[1]) is None
