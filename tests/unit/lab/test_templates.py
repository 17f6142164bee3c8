"""Templates for clusters: they parse, fit together, and use options that exist."""
import re
import shlex
import subprocess
import sys

import pytest
import yaml  # comes with Horovod
from horovod.runner import launch
from lab.launchers import REPOSITORY

from mxhybrid.commands.main import make_parser

pytestmark = pytest.mark.both_pythons

TEMPLATES = REPOSITORY / 'scripts' / 'templates'
SLURM = TEMPLATES / 'slurm.sbatch'
KUBERNETES = TEMPLATES / 'kubernetes.yaml'


def horovodrun(line, monkeypatch):
    """A command line as horovodrun itself understands it."""
    words = shlex.split(line)
    assert words[0] == 'horovodrun'
    monkeypatch.setattr(sys, 'argv', words)
    return launch.parse_args()


def joined(text):
    """Text of a shell script with continued lines joined."""
    return re.sub(r'\\\n\s*', ' ', text)


def horovodruns(text):
    """The command lines of horovodrun in a script."""
    return [line.strip() for line in joined(text).splitlines() if line.strip().startswith('horovodrun ')]


def steps(text):
    """Return the commands that a script runs on all hosts."""
    return [shlex.split(line)[1:] for line in text.splitlines() if line.strip().startswith('on_all_hosts ')]


def check_shell(text):
    """bash's own parser."""
    result = subprocess.run(['bash', '-n'], input=text.encode(), stderr=subprocess.PIPE, timeout=20, check=False)
    assert (result.returncode, result.stderr) == (0, b'')


@pytest.fixture(scope='module')
def objects():
    """The objects of the manifest by kind."""
    found = list(yaml.safe_load_all(KUBERNETES.read_text()))
    assert len({one['kind'] for one in found}) == len(found)
    return {one['kind']: one for one in found}


def test_slurm(monkeypatch):
    text = SLURM.read_text()
    check_shell(text)
    directives = dict(line[len('#SBATCH --'):].split('=', 1) for line in text.splitlines()
                      if line.startswith('#SBATCH --'))
    assert set(directives) >= {'nodes', 'ntasks-per-node', 'cpus-per-task', 'time', 'output'}
    # sbatch reads no directive after the first command.
    first_command = next(at for at, line in enumerate(text.splitlines()) if line and not line.startswith('#'))
    assert not any(line.startswith('#SBATCH') for line in text.splitlines()[first_command:])
    (line,) = horovodruns(text)
    for name, value in (('"$workers"', '4'), ('"$hosts"', 'a:2,b:2'), ('"$INTERFACE"', 'ib0'), ('"$@"', 'python t.py')):
        assert name in line
        line = line.replace(name, value)
    given = horovodrun(line, monkeypatch)
    assert (given.num_proc, given.hosts, given.use_gloo, given.nics) == (4, 'a:2,b:2', True, {'ib0'})
    assert given.command == ['python', 't.py']
    doctor, job = steps(text)
    assert doctor[:3] == ['python', '-m', 'mxhybrid'] and job == ['$@']
    assert make_parser().parse_args(doctor[3:]).command == 'doctor'


def test_slurm_without_what_it_needs():
    for env, words in (({'INTERFACE': 'lo'}, 'SLURM_SUBMIT_DIR'), ({}, 'INTERFACE')):
        result = subprocess.run(['bash', str(SLURM), 'true'], env=env, stderr=subprocess.PIPE, timeout=20, check=False)
        assert result.returncode != 0 and words in result.stderr.decode()


def test_kubernetes_objects_fit_together(objects):
    assert set(objects) == {'Service', 'NetworkPolicy', 'StatefulSet', 'Job'}
    service, workers, job = objects['Service'], objects['StatefulSet']['spec'], objects['Job']['spec']
    assert service['spec']['clusterIP'] == 'None' and workers['serviceName'] == service['metadata']['name']
    for template in (workers['template'], job['template']):
        labels = template['metadata']['labels']
        assert service['spec']['selector'].items() <= labels.items()
        assert objects['NetworkPolicy']['spec']['podSelector']['matchLabels'].items() <= labels.items()
        (container,) = template['spec']['containers']
        volumes = {volume['name'] for volume in template['spec']['volumes']}
        assert {mount['name'] for mount in container['volumeMounts']} == volumes
        check_shell(container['command'][2])
    assert workers['selector']['matchLabels'] == workers['template']['metadata']['labels']
    assert job['template']['spec']['restartPolicy'] == 'Never' and job['backoffLimit'] == 0
    images = {template['spec']['containers'][0]['image'] for template in (workers['template'], job['template'])}
    assert len(images) == 1  # horovodrun hands on PATH and the working directory


def test_kubernetes_commands(objects, monkeypatch):
    workers = objects['StatefulSet']
    container = workers['spec']['template']['spec']['containers'][0]
    script = objects['Job']['spec']['template']['spec']['containers'][0]['command'][2]
    (line,) = horovodruns(script)
    options = horovodrun(line.replace('"$@"', 'python t.py'), monkeypatch)
    names = ['%s-%d.%s' % (workers['metadata']['name'], at, workers['spec']['serviceName'])
             for at in range(workers['spec']['replicas'])]
    slots = [host.rsplit(':', 1) for host in options.hosts.split(',')]
    assert [name for name, _ in slots] == names
    assert options.num_proc == sum(int(count) for _, count in slots)
    assert options.use_gloo and options.nics == {'eth0'}
    port = int(options.ssh_port)
    assert 'sshd -D -e -p %d ' % port in container['command'][2]
    assert container['readinessProbe']['tcpSocket']['port'] == port
    assert 'for host in %s;' % ' '.join(names) in script and '/$host/%d)' % port in script
    doctor, job = steps(script)
    assert make_parser().parse_args(doctor[3:]).command == 'doctor' and job[0] == 'python'
    secret = objects['Job']['spec']['template']['spec']['volumes'][0]['secret']['secretName']
    assert 'create secret generic %s ' % secret in KUBERNETES.read_text()
