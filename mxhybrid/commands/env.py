"""Print versions and settings, to be pasted into an issue report."""
import argparse
import os
import platform
import re
import sys
from typing import List

from .. import __version__
from ..base.machine import available_bytes
from ..base.text import size_text
from . import console
from .checks.software import describe_build, describe_gpus, inspect_all, inspect_gpus
from .main import run_alone

#: Environment variables that are shown, and those among them whose values are secret.
_SHOWN = re.compile(r'(MXHYBRID|HOROVOD|DMLC|MXNET|PS|OMP|MKL|KMP)_')
_SECRET = re.compile(r'SECRET|TOKEN|PASSWORD|PASSWD|KEY', re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--timeout', type=float, default=60.0, metavar='S',
                        help='seconds that each import may take (default %(default)g)')


def lines_of(seconds: float) -> List[str]:
    """Return all lines; each import may take `seconds`."""
    lines = ['- mxhybrid: %s' % __version__, '- platform: %s' % platform.platform(),
             '- python: %s (%s)' % (platform.python_version(), sys.executable)]
    packages = inspect_all(seconds)
    for name, known in packages.items():
        if name == 'mxhybrid' and 'problem' not in known:
            lines.append('- lane: %s' % known.get('lacks', 'yes'))
            continue
        version, details = known.get('version', known.get('problem')), ''
        if name == 'mxnet' and 'features' in known:
            version, details = describe_build(known), ' with ' + ', '.join(known['features'])
        elif name == 'horovod' and 'version' in known:
            details = ': MXNet no (%s)' % known['lacks'] if 'lacks' in known else ': MXNet yes, ' + ', '.join(
                '%s %s' % (part, 'yes' if known[part] else 'no') for part in ('gloo', 'mpi', 'nccl'))
        lines.append('- %s: %s%s' % (name, version, details))
    gpus = inspect_gpus(packages['mxnet'], seconds)
    if gpus:
        lines.append('- gpus: %s' % describe_gpus(gpus))
    lines.append('- cores: %d of %s, memory free: %s' % (len(os.sched_getaffinity(0)), os.cpu_count(),
                                                          size_text(available_bytes())))
    for name, value in sorted(os.environ.items()):
        if _SHOWN.match(name.lstrip('_')):
            lines.append('- %s=%s' % (name, '(not shown)' if _SECRET.search(name) else value))
    return lines


def run(options: argparse.Namespace) -> int:
    console.write('\n'.join(lines_of(options.timeout)))
    return 0


if __name__ == '__main__':
    sys.exit(run_alone('env'))
