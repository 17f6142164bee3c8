"""Main program of a worker: join, warm up, step between barriers, verify, and leave the readings in a file.

A specification may ask for several windows of steps, of which each has barriers of its own.
"""
import importlib
import json
import os
import time
from statistics import median
from typing import Any, Dict

from lab.files import replace_file
from lab.processes import MARKER

from .interruption import die_with_parent
from .measuring import busy_seconds, cpu_seconds, interface_bytes
from .workloads import WORKLOADS, Workload, step_batch

#: Files of a job: its workers are warm; the benchmark lets them go on.
GATE, OPENED = 'warm', 'opened'
_GATE_S = 60.0

#: Modules and classes of workers that train: by workload, and for training workloads by contender.
_TRAINED = {'plans': ('plan_training', 'PlanTrained'), 'pipeline': ('pipeline_training', 'PipelineTrained')}
_MODELS = {'torch_sharded': ('model_torch', 'TorchTrained'), 'torchrec': ('model_torchrec', 'TorchRecTrained')}


def make_workload(spec: Dict[str, Any]) -> Workload:
    """The workload that a job's specification asks for."""
    return WORKLOADS[spec['workload']].shrunk(spec['shrink']).scaled(spec['width_scale'])


def make_contender(spec: Dict[str, Any], rank: int) -> Any:
    """Make the contender of this worker; import the library that it needs and no other."""
    size, contender = spec['hosts'] * spec['workers'], spec['contender']
    if spec['workload'] in WORKLOADS:
        if contender == 'torch_sharded':
            from .sharded import TorchSharded

            return TorchSharded(make_workload(spec), rank, size)
        from .contenders import CLASSES

        return CLASSES[contender](make_workload(spec), rank, size)
    module, name = _TRAINED.get(spec['workload'], ('layers_training', 'Trained'))
    if spec.get('trains'):
        module, name = _MODELS.get(contender, ('model_training', 'Trained'))
    return getattr(importlib.import_module('lab.benchmark.' + module), name)(spec, rank, size)


def _pass_gate(spec: Dict[str, Any]) -> None:
    """Tell the benchmark that the workers are warm, and wait until it has limited their processors."""
    open(os.path.join(spec['directory'], GATE), 'w').close()
    deadline = time.monotonic() + _GATE_S
    while not os.path.exists(os.path.join(spec['directory'], OPENED)):
        if time.monotonic() > deadline:
            raise RuntimeError('the benchmark did not limit the processors within %g s' % _GATE_S)
        time.sleep(0.01)


def _snapshot(spec: Dict[str, Any], rank: int) -> Dict[str, Any]:
    """Readings at one moment: of the host by its first worker, of the job by the first of all."""
    taken: Dict[str, Any] = {}
    if spec['interface'] is not None and rank % spec['workers'] == 0:
        taken['received'], taken['sent'] = interface_bytes()[spec['interface']]
    if rank == 0:
        taken['cpu'], taken['busy'] = cpu_seconds(os.environ[MARKER]), busy_seconds()
    return taken


def main() -> None:
    """Run one worker."""
    die_with_parent()
    spec, rank = json.loads(os.environ['MXHYBRID_BENCH_SPEC']), int(os.environ['MXHYBRID_BENCH_RANK'])
    contender = make_contender(spec, rank)
    contender.start()
    warmup, steps, windows = spec['warmup'], spec['steps'], spec.get('windows', 1)
    for step in range(warmup):
        contender.step(step_batch(step))
    contender.flush()
    contender.barrier()
    if spec.get('gated') and rank == 0:
        _pass_gate(spec)
    before = _snapshot(spec, rank)
    contender.barrier()
    seconds, started = [], time.monotonic()
    for _ in range(windows):
        contender.phases.clear()
        window_started = time.monotonic()
        ends = []
        for step in range(warmup, warmup + steps):
            contender.step(step_batch(step))
            ends.append(time.monotonic() - window_started)
        contender.flush()
        contender.barrier()
        seconds.append(time.monotonic() - window_started)
    after = _snapshot(spec, rank)
    contender.barrier()
    readings = {'rank': rank, 'started': started, 'seconds': median(seconds), 'ends': ends,
                'phases': dict(contender.phases),
                'used': {name: (after[name] - before[name]) / windows for name in before},
                'sums': contender.verify(step_batch(warmup + steps))}
    contender.flush()
    contender.barrier()
    replace_file('%s/rank%d.json' % (spec['directory'], rank), json.dumps(readings))


if __name__ == '__main__':
    main()
