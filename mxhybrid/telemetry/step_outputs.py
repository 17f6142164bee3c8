"""Writes the time and the traffic of every step, as JSON lines and for TensorBoard; in worker 0, about worker 0."""
import importlib
import json
from typing import Any, Callable, Dict, Union

from ..base.log import get_logger

logger = get_logger(__name__)

#: Modules with a ``SummaryWriter(directory, flush_secs=…)`` that has ``add_scalar(tag, value, step)``.
WRITERS = ('tensorboardX', 'torch.utils.tensorboard', 'mxboard')
#: Seconds after which TensorBoard's writer flushes to the disk.
TENSORBOARD_FLUSH_S = 10


class JsonLines:
    """Appends a JSON object a line to a file, and flushes each, so that the file of a running job can be read."""

    def __init__(self, path: str):
        self._file: Any = open(path, 'a')

    def write(self, record: Dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + '\n')
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Writes the numbers of a record as scalars, by the first of :data:`WRITERS` that is installed."""

    def __init__(self, directory: str):
        self._writer = _summary_writer()(directory, flush_secs=TENSORBOARD_FLUSH_S)

    def write(self, record: Dict[str, Any]) -> None:
        for tag, value in numbers_by_tag(record).items():
            self._writer.add_scalar(tag, value, record['step'])

    def close(self) -> None:
        """Flush all scalars to the disk."""
        self._writer.close()


def _summary_writer() -> Any:
    for name in WRITERS:
        try:
            return importlib.import_module(name).SummaryWriter
        except ImportError:
            continue
    raise ImportError('no SummaryWriter is installed: pip install tensorboardX')


def numbers_by_tag(record: Dict[str, Any]) -> Dict[str, float]:
    """Return the numbers of a record of :class:`mxhybrid.telemetry.step_meter.StepMeter` by tag."""
    top = 'mxhybrid' if record['store'] == 0 else 'mxhybrid%d' % record['store']
    flat = {'%s/%s' % (top, name): record[name] for name in ('seconds', 'store_seconds')}
    for kind, counts in record['routes'].items():
        for name, value in counts.items():
            flat['%s/%s/%s' % (top, name, kind.replace(' ', '_'))] = value
    for kind, counts in record.get('network', {}).items():
        for direction, value in counts.items():
            flat['%s/network_%s/%s' % (top, direction, kind.replace(' ', '_'))] = value
    for table, alpha in record['alpha'].items():
        flat['%s/alpha/%s' % (top, table)] = alpha
    return flat


class StepOutputs:
    """The outputs of records, by setting; an output that fails is closed, and the job goes on."""

    def __init__(self, outputs: Dict[str, Union[JsonLines, TensorBoard]]):
        self._outputs = outputs

    def write(self, record: Dict[str, Any]) -> None:
        for setting, output in list(self._outputs.items()):
            self._try(setting, output.write, record)

    def _try(self, setting: str, action: Callable[..., None], *args: Any) -> None:
        try:
            action(*args)
        except Exception as error:  # a writer of TensorBoard may raise anything
            logger.warning('%s is not written any more, the job continues: %s', setting, error)
            del self._outputs[setting]

    def close(self) -> None:
        for setting, output in list(self._outputs.items()):
            self._try(setting, output.close)
        self._outputs = {}
