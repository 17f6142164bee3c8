"""Checks of installed software; each package is inspected in its own process."""
import os
import platform
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple

from ...base import launcher
from ...base.text import size_text
from .findings import ADVICE, FAILED, FINE, Finding
from .processes import call_process, interpreter, package_environment

GROUP = 'Software'

PACKAGES = ('numpy', 'psutil', 'mxnet', 'horovod', 'mxhybrid')

#: Installation commands, as in docs/install.md.
_INSTALL = {
    'numpy': 'pip install numpy==1.23.5',
    'psutil': 'pip install psutil',
    'mxnet': 'pip install mxnet==1.9.1',
    'horovod': ("with MXNet installed: CMAKE_POLICY_VERSION_MINIMUM=3.5 CXXFLAGS='-include cstdint' "
                'HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 '
                'HOROVOD_WITHOUT_PYTORCH=1 pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps '
                'horovod==0.28.1'),
    'mxhybrid': 'solve the problems of MXNet and Horovod, or install mxhybrid again',
}
_TITLES = {'numpy': 'NumPy', 'psutil': 'psutil', 'mxnet': 'MXNet', 'horovod': 'Horovod', 'mxhybrid': 'mxhybrid'}
#: Names of CUDA's libraries.
_OF_CUDA = re.compile(r'lib(cu|nccl|nv)\w*\.so')
#: Features of MXNet's build that are shown.
_NAMED_FEATURES = ('DIST_KVSTORE', 'CUDA', 'CUDNN', 'NCCL', 'MKLDNN', 'OPENMP')


def inspect(name: str, seconds: float) -> Dict[str, Any]:
    """Return the findings of :mod:`.inspect_package` about a package: its 'version', or its 'problem' as text, with
    'missing' true if it is not installed.
    """
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'inspect_package.py')) as source:
        argv = interpreter() + ['-c', source.read(), name]
    # An import must not join the job.
    env = {key: value for key, value in package_environment().items()
           if not key.startswith(launcher.OF_HOROVODRUN + launcher.OF_LAUNCH_PY)}
    ended = call_process(argv, seconds, env)
    answer, act = ended.answer(), 'looking for GPUs' if name == 'gpus' else 'import ' + name
    if answer is None:
        last = ended.last_words()
        return {'problem': '%s %s%s' % (act, ended.how(seconds), ': ' + last if last else '')}
    if 'error' in answer:
        return {'problem': '%s fails: %s: %.400s' % (act, answer['error'], answer['says']),
                'missing': answer['error'] == 'ModuleNotFoundError' and answer['missing'] == name,
                'needs': answer['missing']}
    return answer


def inspect_all(seconds: float) -> Dict[str, Dict[str, Any]]:
    """Return the result of :func:`inspect` for each package; all packages are inspected at the same time."""
    with ThreadPoolExecutor(len(PACKAGES)) as pool:
        return dict(zip(PACKAGES, pool.map(lambda name: inspect(name, seconds), PACKAGES)))


def describe_build(mxnet: Dict[str, Any]) -> str:
    """Return the version of MXNet, and its package if that is not the common one."""
    builds = [name for name in mxnet.get('builds', ()) if name != 'mxnet']
    return mxnet['version'] + (' (%s)' % ', '.join(builds) if builds else '')


def inspect_gpus(mxnet: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    """Return the 'gpus', or the 'problem' with them; empty if MXNet was built without CUDA."""
    return inspect('gpus', seconds) if 'CUDA' in mxnet.get('features', ()) else {}


def describe_gpus(known: Dict[str, Any]) -> str:
    """Return the GPUs as text."""
    if 'problem' in known:
        return str(known['problem'])
    if not known['gpus']:
        return 'none found'
    return ', '.join('GPU %d with %s%s' % (number, size_text(gpu['total']), ' that fails' if gpu['problem'] else '')
                     for number, gpu in enumerate(known['gpus']))


def split_version(text: str) -> Tuple[int, ...]:
    """Return the leading numbers of a version."""
    return tuple(int(number) for number in re.split(r'[^\d.]', text)[0].split('.') if number)


def _python() -> Finding:
    text = '%s %s, %s' % (platform.python_implementation(), platform.python_version(), sys.executable)
    data = {'version': platform.python_version()}
    if (3, 8) <= sys.version_info[:2] < (3, 12):
        return Finding(GROUP, 'python', FINE, text, data=data)
    return Finding(GROUP, 'python', FAILED, text + ': MXNet 1.9.1 runs on CPython 3.8 to 3.11',
                   'use one of these versions, for example python3.11 -m venv', data)


def _numpy(known: Dict[str, Any]) -> Finding:
    text = 'NumPy %s' % known['version']
    if split_version(known['version']) >= (1, 24):
        return Finding(GROUP, 'numpy', FAILED, text + ': MXNet 1.9.1 needs a version below 1.24', _INSTALL['numpy'],
                       known)
    return Finding(GROUP, 'numpy', FINE, text, data=known)


def _psutil(known: Dict[str, Any]) -> Finding:
    return Finding(GROUP, 'psutil', FINE, 'psutil %s' % known['version'], data=known)


def _mxnet(known: Dict[str, Any]) -> Finding:
    features = known['features']
    text = 'MXNet %s with %s' % (describe_build(known), ', '.join(name for name in _NAMED_FEATURES if name in features))
    if 'DIST_KVSTORE' not in features:
        return Finding(GROUP, 'mxnet', FAILED, text + ': built without parameter servers',
                       'build it with USE_DIST_KVSTORE=1, or: ' + _INSTALL['mxnet'], known)
    if len(known['builds']) > 1:  # one has overwritten files of the other, which will be removed with either
        return Finding(GROUP, 'mxnet', ADVICE, '%s: %s share a folder' % (text, ' and '.join(known['builds'])),
                       'pip uninstall %s, then install one' % ' '.join(known['builds']), known)
    if split_version(known['version'])[:2] != (1, 9):
        return Finding(GROUP, 'mxnet', ADVICE, text + ': mxhybrid is made for MXNet 1.9.1, and tested with it',
                       _INSTALL['mxnet'], known)
    return Finding(GROUP, 'mxnet', FINE, text, data=known)


def _horovod(known: Dict[str, Any], mxnet: Dict[str, Any]) -> Finding:
    text = 'Horovod %s' % known['version']
    if 'lacks' in known:
        text += ' without MXNet support: %.300s' % known['lacks']
        remedy = _INSTALL['horovod']
        if 'problem' in mxnet:
            remedy = 'solve the problem of MXNet first; then, if it is still needed, ' + remedy
        return Finding(GROUP, 'horovod', FAILED, text, remedy, known)
    parts = [title for title, name in (('Gloo', 'gloo'), ('MPI', 'mpi'), ('NCCL', 'nccl')) if known[name]]
    text += ' with MXNet%s' % ''.join(', ' + part for part in parts)
    if not known['gloo']:
        return Finding(GROUP, 'horovod', FAILED, text + ', but without Gloo, which connects the workers',
                       _INSTALL['horovod'], known)
    return Finding(GROUP, 'horovod', FINE, text, data=known)


def _mxhybrid(known: Dict[str, Any]) -> Finding:
    text = 'mxhybrid %s' % known['version']
    if 'lacks' in known:
        text += ' without the lane, so rows travel by ps-lite: ' + known['lacks']
        return Finding(GROUP, 'mxhybrid', ADVICE, text, 'install g++, then install mxhybrid again', known)
    return Finding(GROUP, 'mxhybrid', FINE, text + ' with the lane', data=known)


def check_gpus(known: Dict[str, Any], horovod: Dict[str, Any]) -> List[Finding]:
    """Return findings about the GPUs, given the facts about them and about Horovod."""
    text = 'GPUs of MXNet: ' + describe_gpus(known)
    if 'problem' in known:
        return [Finding(GROUP, 'gpus', FAILED, text, 'see nvidia-smi, and docs/gpu.md', known)]
    broken = ['GPU %d: %s' % (number, gpu['problem']) for number, gpu in enumerate(known['gpus']) if gpu['problem']]
    if broken:
        return [Finding(GROUP, 'gpus', FAILED, '%s; %s' % (text, '; '.join(broken)),
                        "MXNet's builds have no kernels for compute capability 9.0 and later, see docs/gpu.md; for "
                        'other causes see nvidia-smi', known)]
    if not known['gpus']:
        return [Finding(GROUP, 'gpus', ADVICE, text + ', so this build works on CPUs only',
                        'see nvidia-smi for the driver, and CUDA_VISIBLE_DEVICES', known)]
    findings = [Finding(GROUP, 'gpus', FINE, text, data=known)]
    if not horovod.get('nccl'):
        findings.append(Finding(GROUP, 'nccl', ADVICE, 'Horovod has no NCCL: dense gradients of GPUs are summed in the '
                                "host's memory", 'build it with HOROVOD_GPU_OPERATIONS=NCCL, see docs/gpu.md'))
    return findings


def _broken(name: str, known: Dict[str, Any], others: Dict[str, Dict[str, Any]]) -> Finding:
    text = '%s is not installed' % _TITLES[name] if known.get('missing') else known['problem']
    remedy = _INSTALL[name]
    needs = known.get('needs')
    if needs and needs != name and needs in PACKAGES:
        remedy = 'it needs %s: see the remedy there' % _TITLES[needs]
    elif name == 'mxhybrid' and any('problem' in others[other] for other in ('numpy', 'mxnet')):
        remedy = 'solve the problems above first'
    elif 'libcuda.so' in text:
        remedy = "this build of MXNet needs NVIDIA's driver, which has this library; without GPUs: %s" % remedy
    elif _OF_CUDA.search(text):
        remedy = 'MXHYBRID_MXNET=mxnet-cu112 scripts/install also installs CUDA libraries, see docs/gpu.md'
    elif not known.get('missing') and name != 'mxhybrid':
        remedy = 'try it alone: %s -c "import %s"; or install it again: %s' % (sys.executable, name, remedy)
    return Finding(GROUP, name, FAILED, text, remedy, {key: value for key, value in known.items() if key != 'needs'})


def _launchers() -> Finding:
    beside = os.path.join(os.path.dirname(sys.executable), 'horovodrun')
    path = beside if os.access(beside, os.X_OK) else shutil.which('horovodrun')
    if path is None:
        return Finding(GROUP, 'horovodrun', ADVICE, 'horovodrun is neither beside %s nor on PATH' % sys.executable,
                       'activate the environment in which Horovod is installed, or run: '
                       'python -m horovod.runner.launch')
    if path != beside:
        return Finding(GROUP, 'horovodrun', ADVICE, 'horovodrun is %s, but Python is %s' % (path, sys.executable),
                       'activate the environment in which Horovod is installed', {'path': path})
    return Finding(GROUP, 'horovodrun', FINE, 'horovodrun is ' + path, data={'path': path})


def check(seconds: float) -> List[Finding]:
    """Check Python and every package; each import may take `seconds`."""
    known = inspect_all(seconds)
    findings = [_python()]
    checks = {'numpy': _numpy, 'psutil': _psutil, 'mxnet': _mxnet, 'mxhybrid': _mxhybrid,
              'horovod': lambda horovod: _horovod(horovod, known['mxnet'])}
    for name in PACKAGES:
        findings.append(_broken(name, known[name], known) if 'problem' in known[name] else checks[name](known[name]))
    gpus = inspect_gpus(known['mxnet'], seconds)
    if gpus:
        findings += check_gpus(gpus, known['horovod'])
    return findings + [_launchers()]
