"""The samples of each step, drawn from the number of the step: the number of workers may change between two steps.

An epoch is a pseudorandom permutation of the samples.  A Feistel network computes any part of it, so no worker holds
the permutation, and a training that resumes at a step computes nothing of the steps before.  The network permutes the
numbers below a power of two; a result that is not below the number of samples is permuted again ("cycle walking": Black
and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 3).
"""
from typing import Any, Iterator, List, Optional, Tuple

import numpy as np

from ..base.errors import InputError
from ..job.join import member

#: Rounds of the Feistel network, each of which changes a half of the bits.
_ROUNDS = 8
#: Elements of a permutation that are computed at a time.
_BLOCK = 1 << 14
#: The constants of splitmix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
_STEP, _FIRST_FACTOR, _SECOND_FACTOR = (
    np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Samples:
    """The order in which a training takes its samples, whatever the number of workers.

    ::

        samples = mxhybrid.elastic.Samples(len(dataset), batch=256, seed=1)
        batches = samples.batches(step, samples.steps(EPOCHS))
        for images, labels in gluon.data.DataLoader(dataset, batch_sampler=batches):
            ...                                               # forward, backward of the sum of the losses
            trainer.step(samples.size(step))
            step += 1

    Step number `step` has the same *joint batch* in every job; the workers divide it into shares that differ by at most
    one sample.  So a training that resumes at a step with another number of workers loses no sample and sees none
    twice.  ``trainer.step(samples.size(step))`` divides the sum of the gradients of all workers by the samples of the
    joint batch: the update is that of one process, also if the shares differ.

    Parameters
    ----------
    length : int
        The number of samples.
    batch : int
        The samples of a joint batch; at least twice the number of workers, unless it divides `length`.
    seed : int, optional
        From 0 to 2^63 - 1; the order of an epoch depends on it and on the number of the epoch.
    last_batch : str, optional
        ``'keep'``: an epoch ends with its last sample, and the last two joint batches of an epoch share what does not
        fill them, so that no worker is without a sample.  ``'rollover'``: all joint batches have `batch` samples; the
        last one of an epoch takes the first samples of the next epoch, too.

    Raises
    ------
    InputError
        A parameter is no such number or word.
    """

    def __init__(self, length: int, batch: int, seed: int = 0, last_batch: str = 'keep'):
        for name, value, least, most in (('length', length, 1, 1 << 62), ('batch', batch, 1, 1 << 31),
                                         ('seed', seed, 0, (1 << 63) - 1)):
            _check(name, value, least, most)
        if last_batch not in ('keep', 'rollover'):
            raise InputError("Samples: last_batch=%r: give 'keep' or 'rollover'" % (last_batch,))
        self._length, self._batch, self._seed = int(length), int(batch), int(seed)
        self._rolls = last_batch == 'rollover'
        self._last_block = -1, -1, np.empty(0, np.int64)
        bits = max(2, (self._length - 1).bit_length())
        # The bits of the lower and of the upper half of a number.
        self._low_bits, self._low_mask = np.uint64(bits // 2), np.uint64((1 << bits // 2) - 1)
        self._high_mask = np.uint64((1 << bits - bits // 2) - 1)

    def steps(self, epochs: int) -> int:
        """Return the number of steps that this number of epochs takes.

        With ``'rollover'``, the last of these steps may also take samples of the epoch after.
        """
        _check('epochs', epochs, 0, 1 << 31)
        return -(-epochs * self._length // self._batch) if self._rolls else epochs * self._steps_per_epoch

    def size(self, step: int) -> int:
        """Return the number of samples of the joint batch of a step, by which ``trainer.step`` divides."""
        _check('step', step, 0, 1 << 62)
        return self._batch if self._rolls else len(range(*self._positions(step % self._steps_per_epoch)))

    def joint(self, step: int) -> np.ndarray:
        """Return the numbers of the samples of all workers in a step, int64, of shape (``size(step)``,)."""
        return self._drawn(step, 0, self.size(step))

    def share(self, step: int, rank: int, workers: int) -> np.ndarray:
        """Return the numbers of the samples of one of the workers in a step, int64.

        The shares of all ranks, one after the other, are the joint batch.

        Raises
        ------
        InputError
            The joint batch has fewer samples than there are workers, or there is no such rank.
        """
        _check('workers', workers, 1, 1 << 31)
        _check('rank', rank, 0, workers - 1)
        size = self.size(step)
        if size < workers:
            raise InputError('Samples: the joint batch of step %d has %d samples for %d workers (length=%d, batch=%d): '
                             'give a batch of at least %d, or fewer workers'
                             % (step, size, workers, self._length, self._batch, 2 * workers))
        return self._drawn(step, rank * size // workers, (rank + 1) * size // workers)

    def batches(self, first: int, last: int, rank: Optional[int] = None, workers: Optional[int] = None) -> 'Batches':
        """Return a worker's shares of the steps from `first` to `last` - 1, as a ``batch_sampler`` of a DataLoader.

        Parameters
        ----------
        first, last : int
            Numbers of steps: where the training goes on, and ``steps(epochs)``.
        rank, workers : int, optional
            The worker's rank, and the number of workers; those of the job by default, which this process joins then.
            Give 0 and 1 for a network that `mxhybrid.parallelize` has split, and take ``net.samples`` of each batch.

        Raises
        ------
        InputError
            A step has fewer samples than there are workers.
        """
        _check('first', first, 0, 1 << 62)
        _check('last', last, first, 1 << 62)
        if rank is None or workers is None:
            job = member()
            rank, workers = job.rank, job.num_workers
        if first < last:  # the last joint batch of an epoch is the smallest
            self.share(min(last - 1, first + self._steps_per_epoch - 1 - first % self._steps_per_epoch), rank, workers)
        return Batches(self, first, last, rank, workers)

    @property
    def _steps_per_epoch(self) -> int:
        return -(-self._length // self._batch)

    def _positions(self, number: int) -> Tuple[int, int]:
        """Return the positions in an epoch at which its joint batch `number` begins and ends."""
        batch, length = self._batch, self._length
        full = length // batch - 1 if length % batch else length // batch  # batches before the last two that share
        if number < full or length < batch:
            return number * batch, min((number + 1) * batch, length)
        middle = full * batch + (length - full * batch + 1) // 2
        return (full * batch, middle) if number == full else (middle, length)

    def _drawn(self, step: int, first: int, last: int) -> np.ndarray:
        """Return the samples of a joint batch from `first` to `last` - 1."""
        if not self._rolls:
            epoch, number = divmod(step, self._steps_per_epoch)
            start = self._positions(number)[0]
            return self._permuted(epoch, start + first, start + last)
        start, end, parts = step * self._batch + first, step * self._batch + last, []
        while start < end:
            epoch, position = divmod(start, self._length)
            count = min(end - start, self._length - position)
            parts.append(self._permuted(epoch, position, position + count))
            start += count
        return np.concatenate(parts or [np.empty(0, np.int64)])

    def _permuted(self, epoch: int, first: int, last: int) -> np.ndarray:
        """Return the elements of the permutation of an epoch from `first` to `last` - 1."""
        numbers = range(first // _BLOCK, -(-last // _BLOCK))
        return np.concatenate([np.empty(0, np.int64)] + [
            self._block(epoch, number)[max(0, first - number * _BLOCK):last - number * _BLOCK] for number in numbers])

    def _block(self, epoch: int, block: int) -> np.ndarray:
        """Return a block of the permutation of an epoch; the last one is kept, since the next step takes it, too."""
        if self._last_block[:2] != (epoch, block):
            keys = _mixed(_mixed(np.array([self._seed], np.uint64)) + _STEP * np.array([epoch], np.uint64))
            keys = _mixed(keys + _STEP * np.arange(_ROUNDS, dtype=np.uint64))
            numbers = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, self._length), dtype=np.uint64)
            outside = np.arange(len(numbers))
            while len(outside):
                numbers[outside] = self._encrypted(numbers[outside], keys)
                outside = outside[numbers[outside] >= self._length]
            self._last_block = epoch, block, numbers.astype(np.int64)
        return self._last_block[2]

    def _encrypted(self, numbers: np.ndarray, keys: np.ndarray) -> np.ndarray:
        low, high = numbers & self._low_mask, numbers >> self._low_bits
        for number in range(0, _ROUNDS, 2):
            low ^= _mixed(high * _STEP + keys[number]) & self._low_mask
            high ^= _mixed(low * _STEP + keys[number + 1]) & self._high_mask
        return high << self._low_bits | low


class Batches:
    """A worker's shares of successive steps, see :meth:`Samples.batches`: lists of the numbers of samples."""

    def __init__(self, samples: Samples, first: int, last: int, rank: int, workers: int):
        self._samples, self._steps = samples, range(first, last)
        self._worker = rank, workers

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[List[int]]:
        for step in self._steps:
            yield self._samples.share(step, *self._worker).tolist()


def _mixed(values: np.ndarray) -> np.ndarray:
    """Return the output function of splitmix64 of each value."""
    values = (values ^ values >> np.uint64(30)) * _FIRST_FACTOR
    values = (values ^ values >> np.uint64(27)) * _SECOND_FACTOR
    return values ^ values >> np.uint64(31)


def _check(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not hasattr(value, '__index__') or not least <= value <= most:
        raise InputError('Samples: %s=%r: give an integer from %d to %d' % (name, value, least, most))
