"""Says what one package is, or which GPUs there are, as a line of JSON; runs in a process of its own, since an import
may crash or hang.

Its text is handed to an interpreter, so it must not import anything of mxhybrid by itself.
"""
import json
import re
import sys
from importlib import metadata


def about_numpy():
    import numpy

    return {'version': numpy.__version__}


def about_psutil():
    """psutil, which comes with Horovod."""
    import psutil

    return {'version': psutil.__version__}


def about_mxnet():
    """MXNet: its version, what it was built with, and the packages that it came in, of which there should be one."""
    import mxnet

    features = sorted(feature.name for feature in mxnet.runtime.feature_list() if feature.enabled)
    array = mxnet.nd.ones((2, 2))
    assert float((array + array).sum().asscalar()) == 8.0
    names = {(one.metadata['Name'] or '').lower().replace('_', '-') for one in metadata.distributions()}
    builds = sorted(name for name in names if re.match(r'mxnet(-cu\d+)?$', name))
    return {'version': mxnet.__version__, 'features': features, 'path': mxnet.__file__, 'builds': builds}


def about_gpus():
    """The GPUs that MXNet finds: memory in bytes, and why MXNet cannot compute on one, empty if it can."""
    import mxnet

    found = []
    for number in range(mxnet.context.num_gpus()):
        free, total = mxnet.context.gpu_memory_info(number)
        problem = ''
        try:
            array = mxnet.nd.ones((2, 2), ctx=mxnet.gpu(number))
            assert float((array + array).sum().asscalar()) == 8.0
        except Exception as error:
            problem = '%s: %s' % (type(error).__name__, str(error).strip().splitlines()[-1])
        found.append({'free': free, 'total': total, 'problem': problem})
    return {'gpus': found}


def about_horovod():
    """Horovod, and what its support of MXNet was built with."""
    import horovod

    known = {'version': horovod.__version__, 'path': horovod.__file__}
    try:
        import horovod.mxnet as hvd
    except Exception as error:
        known['lacks'] = '%s: %s' % (type(error).__name__, error)
        return known
    return dict(known, gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()), nccl=bool(hvd.nccl_built()))


def about_mxhybrid():
    """mxhybrid itself, with everything that it needs."""
    import mxhybrid
    from mxhybrid.lane import library

    known = {'version': mxhybrid.__version__, 'path': mxhybrid.__file__, 'store': mxhybrid.Hybrid.__name__}
    try:
        library.load()
    except OSError as error:
        known['lacks'] = str(error)
    return known


def main():
    """Answer for what the command line names."""
    name = sys.argv[1]
    try:
        answer = globals()['about_' + name]()
    except Exception as error:
        answer = {'error': type(error).__name__, 'says': str(error), 'missing': getattr(error, 'name', None)}
    # What a package prints while it is imported is not part of the answer.
    print('\nmxhybrid-answer ' + json.dumps(answer))  # noqa: T201


if __name__ == '__main__':
    main()
