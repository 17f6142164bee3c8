"""Gives the hybrid store to Trainers that ask for a local store, if the setting ``replace_local_stores`` is 1.

So libraries that make the Trainer themselves, with ``kvstore='device'`` as a constant, can train in a job of several
workers.
"""
import os
from typing import Any

from mxnet.kvstore import KVStore

from ..base.log import get_logger
from ..base.settings import DECLARED, variable
from ..job.join import current, member
from ..native.trainers import exchanges_by_itself
from .trainer_step import is_hybrid

logger = get_logger(__name__)

#: MXNet's stores that work within one process.
_LOCAL = ('local', 'local_allreduce_cpu', 'device', 'local_allreduce_device')


def _is_local(kvstore: Any) -> bool:
    name = kvstore if isinstance(kvstore, str) else kvstore.type if isinstance(kvstore, KVStore) else ''
    return kvstore is None or not is_hybrid(kvstore) and name.lower() in _LOCAL


def store_for(trainer: Any, kvstore: Any) -> Any:
    """Return the store that a new Trainer takes in place of the one it was given (collective if the setting is 1)."""
    if not _is_local(kvstore) or exchanges_by_itself(trainer):
        return kvstore
    job = current()
    if job is None:
        name = variable('replace_local_stores')
        text = os.environ.get(name, '')  # other settings do not matter if this one is not set
        if not text.strip() or not DECLARED['replace_local_stores'].check(name, text):
            return kvstore
        job = member()
    if not job.settings.replace_local_stores or not job.joined:
        return kvstore
    logger.info("a Trainer takes kvstore='hybrid' in place of %r: its steps divide the sum of the gradients of %d "
                'workers by the batch size that step() is given', getattr(kvstore, 'type', kvstore), job.num_workers)
    return 'hybrid'
