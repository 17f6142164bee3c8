"""Describes one package, or the GPUs, as a line of JSON; runs in its own process, since an import may crash or hang.

The source of this file is passed to an interpreter, so it must not import anything of mxhybrid at its top.
"""
import importlib
import json
import re
import sys
from importlib import metadata


def about_mxnet():
    """Describe MXNet: its version, the features of its build, and the packages that have it, which should be one."""
    import mxnet

    features = sorted(feature.name for feature in mxnet.runtime.feature_list() if feature.enabled)
    array = mxnet.nd.ones((2, 2))
    assert float((array + array).sum().asscalar()) == 8.0
    names = {(package.metadata['Name'] or '').lower().replace('_', '-') for package in metadata.distributions()}
    builds = sorted(name for name in names if re.match(r'mxnet(-cu\d+)?$', name))
    return {'version': mxnet.__version__, 'features': features, 'path': mxnet.__file__, 'builds': builds}


def about_gpus():
    """Describe the GPUs that MXNet finds: memory in bytes, and why MXNet cannot compute on one, empty if it can."""
    import mxnet

    gpus = []
    for number in range(mxnet.context.num_gpus()):
        free, total = mxnet.context.gpu_memory_info(number)
        problem = ''
        try:
            array = mxnet.nd.ones((2, 2), ctx=mxnet.gpu(number))
            assert float((array + array).sum().asscalar()) == 8.0
        except Exception as error:
            problem = '%s: %s' % (type(error).__name__, str(error).strip().splitlines()[-1])
        gpus.append({'free': free, 'total': total, 'problem': problem})
    return {'gpus': gpus}


def about_horovod():
    """Describe Horovod, and the build of its support of MXNet."""
    import horovod

    known = {'version': horovod.__version__, 'path': horovod.__file__}
    try:
        import horovod.mxnet as hvd
    except Exception as error:
        known['lacks'] = '%s: %s' % (type(error).__name__, error)
        return known
    return dict(known, gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()), nccl=bool(hvd.nccl_built()))


def about_mxhybrid():
    """Describe mxhybrid, imported with everything that it needs."""
    import mxhybrid
    from mxhybrid.lane import library

    known = {'version': mxhybrid.__version__, 'path': mxhybrid.__file__, 'store': mxhybrid.Hybrid.__name__}
    try:
        library.load()
    except OSError as error:
        known['lacks'] = str(error)
    return known


def main():
    """Answer for the package that the command line names."""
    name = sys.argv[1]
    try:
        about = globals().get('about_' + name)
        answer = {'version': importlib.import_module(name).__version__} if about is None else about()
    except Exception as error:
        answer = {'error': type(error).__name__, 'says': str(error), 'missing': getattr(error, 'name', None)}
    # The marker is ANSWER of mxhybrid.commands.checks.processes.
    print('\nmxhybrid-answer ' + json.dumps(answer))  # noqa: T201


if __name__ == '__main__':
    main()
