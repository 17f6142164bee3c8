"""mxhybrid doctor on this host, and under conditions that are really broken."""
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict

import pytest
from lab.launchers import REPOSITORY

from mxhybrid.base.launcher import OF_OTHERS, Launch, read as read_launch
from mxhybrid.base.storage_probe import Volume
from mxhybrid.commands.checks import hosts as host_checks, settings as setting_checks, storage as storage_checks
from mxhybrid.commands.checks.comparison import Report, compare, merge_findings
from mxhybrid.commands.checks.findings import ADVICE, FAILED, FINE, Finding
from mxhybrid.commands.checks.processes import Ended, call_process, within
from mxhybrid.commands.checks.software import check_gpus, describe_build, describe_gpus, split_version

pytestmark = pytest.mark.both_pythons


def doctor(*arguments, options=(), path='', env=None, limits=None):
    """Run the doctor in a process of its own; return its status, its findings by name, and its output."""
    environ = {name: value for name, value in os.environ.items()
               if not name.startswith(('HOROVOD_', 'DMLC_', 'MXHYBRID_', 'MXNET_') + OF_OTHERS)}
    environ.update(env or {}, PYTHONPATH=os.pathsep.join(str(part) for part in (path, REPOSITORY) if part))
    argv = [sys.executable, *options, '-m', 'mxhybrid', 'doctor', '--json', '-', *arguments]
    result = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=55,
                            preexec_fn=limits, check=False)
    content = json.loads(result.stdout.decode())
    return result.returncode, {one['name']: one for one in content['findings']}, content


def broken_package(directory, name, code):
    """Put a package in front of the real one."""
    (directory / name).mkdir()
    (directory / name / '__init__.py').write_text(code)


# ------------------------------------------------------------------------------------------------- whole doctor

def test_a_host_on_which_all_works():
    status, findings, content = doctor(env={'OMP_NUM_THREADS': '1'})
    assert status == 0 and content['ok'], findings
    assert {'DIST_KVSTORE', 'OPENMP'} <= set(findings['mxnet']['data']['features'])
    assert findings['horovod']['data']['gloo'] is True
    for name in ('python', 'numpy', 'psutil', 'mxnet', 'horovod', 'mxhybrid', 'engine', 'ports', 'open files', 'cores'):
        assert findings[name]['level'] == FINE, findings[name]


def test_tasks_of_a_launcher_that_makes_no_job():
    status, findings, _ = doctor(env={'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_RANK': '0'})
    assert status == 1 and findings['launcher']['level'] == FAILED
    assert 'OMPI_COMM_WORLD_SIZE=2' in findings['launcher']['text']
    assert 'horovodrun -np 2' in findings['launcher']['remedy']


@pytest.mark.parametrize('environ, has_mpi, level', [
    ({'WORLD_SIZE': '2', 'RANK': '0'}, False, FAILED), ({'WORLD_SIZE': '2'}, False, ADVICE), ({}, False, None),
    ({'PMI_SIZE': '2', 'PMI_RANK': '1'}, False, FAILED), ({'PMI_SIZE': '2', 'PMI_RANK': '1'}, True, None),
    ({'HOROVOD_SIZE': '2', 'HOROVOD_RANK': '0', 'HOROVOD_GLOO_RENDEZVOUS_ADDR': '10.0.0.1',
      'HOROVOD_GLOO_RENDEZVOUS_PORT': '7'}, False, None)])
def test_tasks_that_a_launcher_has_started(monkeypatch, environ, has_mpi, level):
    for name in os.environ:
        if name.startswith(OF_OTHERS):
            monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert [one.level for one in setting_checks.check_tasks(read_launch(), has_mpi)] == [level] * (level is not None)


def test_text_for_people():
    env = dict(os.environ, PYTHONPATH=str(REPOSITORY), MXNET_ENGINE_TYPE='NaiveEngine', COLUMNS='100')
    result = subprocess.run([sys.executable, '-S', '-m', 'mxhybrid', 'doctor'], env=env, stdout=subprocess.PIPE,
                            timeout=55, check=False)
    text = result.stdout.decode()
    assert result.returncode == 1
    assert '[X] CPython 3.' in text and '[ ] MXNet is not installed\n        -> pip install mxnet==1.9.1' in text
    assert '[ ] MXNET_ENGINE_TYPE=NaiveEngine deadlocks' in text and '-> unset MXNET_ENGINE_TYPE' in text
    assert text.rstrip().endswith('6 problems keep a job from working')
    assert max(map(len, text.splitlines())) <= 100


def test_nothing_installed():
    status, findings, _ = doctor(options=['-S'])  # without site-packages
    assert status == 1
    for name in ('numpy', 'psutil', 'mxnet', 'horovod'):
        assert findings[name]['level'] == FAILED and 'is not installed' in findings[name]['text']
        assert 'pip install' in findings[name]['remedy']
    assert findings['ports']['level'] == FINE  # and all that can be checked is


def test_a_broken_mxnet(tmp_path):
    broken_package(tmp_path, 'mxnet', "import ctypes\nctypes.CDLL('libnowhere.so.7')\n")
    status, findings, _ = doctor(path=tmp_path)
    assert status == 1
    assert findings['mxnet']['level'] == FAILED and 'libnowhere.so.7' in findings['mxnet']['text']
    assert 'without MXNet support' in findings['horovod']['text']
    assert findings['horovod']['remedy'].startswith('solve the problem of MXNet first')
    assert findings['mxhybrid']['level'] == FAILED and 'problems above' in findings['mxhybrid']['remedy']
    assert findings['numpy']['level'] == FINE


@pytest.mark.parametrize('library, remedy', [('libcuda.so.77', "NVIDIA's driver"),
                                             ('libcudnn.so.77', 'MXHYBRID_MXNET=mxnet-cu112 scripts/install')])
def test_a_mxnet_without_its_cuda_libraries(tmp_path, library, remedy):
    broken_package(tmp_path, 'mxnet', 'import ctypes\nctypes.CDLL(%r)\n' % library)
    status, findings, _ = doctor(path=tmp_path)
    assert status == 1
    assert library in findings['mxnet']['text'] and remedy in findings['mxnet']['remedy']


def test_two_builds_of_mxnet_in_one_folder(tmp_path):
    package = tmp_path / 'mxnet_cu99-1.9.1.dist-info'
    package.mkdir()
    (package / 'METADATA').write_text('Metadata-Version: 2.1\nName: mxnet-cu99\nVersion: 1.9.1\n')
    status, findings, _ = doctor(path=tmp_path)
    assert status == 0 and findings['mxnet']['level'] == ADVICE
    assert 'mxnet-cu99) with ' in findings['mxnet']['text'] and 'share a folder' in findings['mxnet']['text']
    assert findings['mxnet']['remedy'].startswith('pip uninstall mxnet')


def test_builds_of_mxnet():
    assert describe_build({'version': '1.9.1', 'builds': ['mxnet']}) == '1.9.1'
    assert describe_build({'version': '1.9.1', 'builds': ['mxnet-cu112']}) == '1.9.1 (mxnet-cu112)'


GPU = {'free': 15 << 30, 'total': 16 << 30, 'problem': ''}


@pytest.mark.parametrize('gpus, horovod, levels, words', [
    ([], {'nccl': False}, {'gpus': ADVICE}, ['none found', 'CUDA_VISIBLE_DEVICES']),
    ([GPU, GPU], {'nccl': True}, {'gpus': FINE}, ['GPU 1 with 17.2 GB']),
    ([GPU], {'nccl': False}, {'gpus': FINE, 'nccl': ADVICE}, ['GPU 0 with 17.2 GB', 'HOROVOD_GPU_OPERATIONS=NCCL']),
    ([GPU, dict(GPU, problem='no kernel image')], {}, {'gpus': FAILED}, ['GPU 1: no kernel image', '9.0 and later'])])
def test_gpus(gpus, horovod, levels, words):
    found = check_gpus({'gpus': gpus}, horovod)
    assert {one.name: one.level for one in found} == levels
    assert all(word in ' '.join(one.text + one.remedy for one in found) for word in words)


def test_a_look_at_gpus_that_fails():
    one, = check_gpus({'problem': 'looking for GPUs crashed'}, {})
    assert one.level == FAILED and 'looking for GPUs crashed' in one.text
    assert describe_gpus({'problem': 'looking for GPUs crashed'}) == 'looking for GPUs crashed'


def test_packages_that_crash_and_hang(tmp_path):
    broken_package(tmp_path, 'horovod', 'import os\nos.abort()\n')
    for name in ('psutil', 'numpy', 'mxnet'):
        broken_package(tmp_path, name, 'import time\ntime.sleep(1000)\n')
    status, findings, _ = doctor('--timeout', '3', path=tmp_path)
    assert status == 1
    assert 'crashed with signal 6 (SIGABRT)' in findings['horovod']['text']
    for name in ('psutil', 'numpy', 'mxnet', 'mxhybrid'):
        assert findings[name]['text'].startswith('import %s did not end within 3 s' % name)
    assert findings['shared memory']['level'] == FAILED and findings['ports']['level'] == FINE


def test_settings_that_cannot_work(tmp_path):
    status, findings, _ = doctor(options=['-S'], env={
        'MXHYBRID_PARTITIONS': 'many', 'MXHYBRID_PARTITION': '3', 'MXHYBRID_METRICS': str(tmp_path / 'none' / 'x'),
        'HOROVOD_GLOO_IFACE': 'nowhere0', 'OMP_NUM_THREADS': '1'})
    assert status == 1
    assert findings['settings']['level'] == FAILED and 'MXHYBRID_PARTITIONS' in findings['settings']['text']
    assert findings['MXHYBRID_PARTITION']['remedy'] == 'did you mean MXHYBRID_PARTITIONS?'
    assert findings['metrics']['level'] == FAILED and 'does not exist' in findings['metrics']['text']
    assert findings['interfaces']['level'] == FAILED and 'nowhere0' in findings['interfaces']['text']
    assert '--network-interface' in findings['interfaces']['remedy']


def test_storage_of_tables(tmp_path):
    status, findings, _ = doctor(options=['-S'], env={
        'MXHYBRID_STORAGE': '*users*=%s,*words*=%s,*=memory' % (tmp_path, tmp_path / 'none'),
        'MXHYBRID_STORAGE_MEMORY': '1000000G', 'MXHYBRID_SERVERS_PER_HOST': '2', 'OMP_NUM_THREADS': '1'})
    there, missing = findings['storage of %s' % tmp_path], findings['storage of %s' % (tmp_path / 'none')]
    assert there['level'] in (FINE, ADVICE) and 0 < there['data']['free'] <= there['data']['size']
    assert 'free for rows of dynamic tables (%s, ' % there['data']['kind'] in there['text']
    assert status == 1 and missing['level'] == FAILED and missing['text'].endswith('none is missing')
    assert findings['budget of tables']['level'] == ADVICE
    assert 'to a table on each of 2 servers of a host' in findings['budget of tables']['text']
    assert findings['memory']['data']['free'] > 0 and 'the rows of tables' in findings['memory']['text']
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('kind, is_remote, can_reserve, level, words', [
    ('ext4', False, True, FINE, '(ext4, /dev/sdb)'), ('tmpfs', False, True, ADVICE, 'its files are in memory'),
    ('nfs4', True, True, ADVICE, 'rows cross the network'), ('zfs', False, False, ADVICE, 'cannot reserve blocks')])
def test_file_systems_of_storage(monkeypatch, tmp_path, kind, is_remote, can_reserve, level, words):
    monkeypatch.setattr(storage_checks, 'volume_of', lambda directory: Volume(
        kind, '/dev/sdb', 10 ** 12, 4 * 10 ** 11, is_remote, 'x'))
    monkeypatch.setattr(storage_checks, 'reserves_blocks', lambda directory: can_reserve)
    finding = storage_checks.check_directory(str(tmp_path))
    assert finding.level == level and words in finding.text and bool(finding.remedy) == (level == ADVICE)
    assert finding.text.startswith('%s has 400.0 GB of 1000.0 GB free' % tmp_path)


def test_directories_that_hosts_share():
    def texts(*identities):
        reports = [Report(rank, host, findings_of(mxnet='1.9.1')) for rank, host in enumerate('aabc')]
        for report, identity in zip(reports, identities):
            if identity is not None:
                report.findings.append(Finding('Host', 'storage of /rows', FINE, 'room', data={'identity': identity}))
        return [finding.text for finding in compare(reports, 4, None) if finding.name == 'storage of /rows']

    assert texts('x', None, 'y', 'z') == ['/rows is another file system on each host']
    assert texts('x', 'x', 'x', 'z') == ['/rows is the same file system on a, b: their tables share its room']
    assert texts('x', 'x', None, None) == [] == texts(None, None, None, None)


def test_too_few_open_files_for_a_job():
    """128 descriptors do for this host's own checks, not for a worker of sixteen."""
    assert host_checks._files(Launch(workers=16, servers=None)).level == FINE
    _, findings, _ = doctor(options=['-S'], limits=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)))
    assert findings['open files']['level'] == FAILED and findings['open files']['data']['soft'] == 128
    assert 'ulimit -n 4096' in findings['open files']['remedy']


def test_threads_and_cores(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv('OMP_NUM_THREADS', str(cores))
    found = host_checks._cores(Launch('horovodrun', workers=2 * cores, local_workers=2 * cores))
    assert found.level == ADVICE and found.remedy == 'export OMP_NUM_THREADS=1'
    assert host_checks._cores(Launch()).level == FINE


# ------------------------------------------------------------------------------------------------------- pieces

def test_checks_come_to_an_end():
    began = time.monotonic()
    with pytest.raises(TimeoutError, match='0.2 s'):
        within(0.2, lambda: time.sleep(30))
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)
    assert within(5, lambda: 7) == 7
    # A grandchild that keeps the output open must not keep us.
    ended = call_process(['bash', '-c', 'echo out; echo err >&2; sleep 30 & exec sleep 30'], 0.5, dict(os.environ))
    assert (ended.status, ended.output, ended.last_words()) == (None, 'out\n', 'err')
    assert time.monotonic() - began < 25
    assert ended.how(0.5) == 'did not end within 0.5 s'
    assert Ended(-11, '', '').how(1) == 'crashed with signal 11 (SIGSEGV)'
    assert call_process(['cat'], 10, {}, 'given').output == 'given'


def test_versions():
    assert [split_version(text) for text in ('1.23.5', '1.9.1.post0', '2.0rc1', 'x')] == [
        (1, 23, 5), (1, 9, 1), (2, 0), ()]


def test_all_settings_are_known():
    found = setting_checks.check(Launch(), dict.fromkeys(setting_checks.known_variables(), ''))
    assert [one.level for one in found] == [FINE, FINE]


def findings_of(**versions):
    """Return fine findings about packages with these versions."""
    return [Finding('Software', name, FINE, '%s %s' % (name, version), data={'version': version})
            for name, version in versions.items()]


def test_equal_findings_are_shown_once():
    reports = [Report(rank, host, findings_of(mxnet='1.9.1', numpy=numpy))
               for rank, (host, numpy) in enumerate([('a', '1.22'), ('a', '1.22'), ('b', '1.23'), ('b', '1.23')])]
    assert [(one.finding.text, one.where) for one in merge_findings(reports)] == [
        ('mxnet 1.9.1', ''), ('numpy 1.22', 'a'), ('numpy 1.23', 'b')]
    assert [one.where for one in merge_findings(reports[:3:2] + [Report(3, 'b', [])])] == ['', 'a', 'b']
    reports[1].findings[1].text = 'numpy 7'
    assert [one.where for one in merge_findings(reports)] == ['', 'worker 0', 'worker 1', 'b']


def test_problems_that_only_a_comparison_shows():
    reports = [Report(0, 'a', findings_of(mxnet='1.9.1', numpy='1.22')),
               Report(1, 'b', findings_of(mxnet='1.9.0', numpy='1.23')
                      + [Finding('Host', 'name', FINE, 'host name b is 127.0.1.1', data={'address': '127.0.1.1'})])]
    findings = {finding.name: finding for finding in compare(reports, 3, None)}
    assert findings['workers'].text == 'no report from worker 2'
    assert (findings['same mxnet'].level, findings['same numpy'].level) == (FAILED, ADVICE)
    assert '1.9.1 on a; 1.9.0 on b' in findings['same mxnet'].text
    assert findings['name of b'].level == FAILED
    meeting = {'offsets': [0.0, -3.5], 'workers': 2, 'servers': 2, 'right': True, 'files': 9}
    findings = {finding.name: finding for finding in compare(reports, 2, meeting)}
    assert findings['clocks'].level == ADVICE and 'clock of b is 3.5 s behind' in findings['clocks'].text
    assert findings['joining'].level == FINE and 'workers' not in findings
    findings = {finding.name: finding for finding in compare(reports[:1], 1, dict(meeting, right=False, offsets=[0.0]))}
    assert (findings['joining'].level, findings['clocks'].level, findings['versions'].level) == (FAILED, FINE, FINE)


def test_reports_travel_as_json():
    report = Report(1, 'a', findings_of(mxnet='1.9.1'))
    assert Report.from_json(json.loads(json.dumps(asdict(report)))) == report
