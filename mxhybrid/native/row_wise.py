"""Optimizers of the user's own for tables: the mark that says that a class works row by row.

Servers hold a table in partitions, each of which they update by itself.  A class may do that if a row of weights comes
out the same whatever other rows there are: no norms over the table, no random numbers, nothing that counts calls.
Nobody can see that in a class, so the user says so; :mod:`mxhybrid.servers.row_wise_check` tries it before anything is sent.

Servers of ``launch.py`` import modules of the user's while ``import mxnet`` has not finished, so this one imports it
late.
"""
from typing import Any

from ..base.errors import InputError

#: Looked up in the class itself: who derives from a marked class may do anything.
_MARK = '_mxhybrid_row_wise'


def row_wise(optimizer_class: Any) -> Any:
    """Say that an optimizer class works row by row, so that servers may update row_sparse weights with it.

    To be used as a decorator, or as a function on a class of somebody else.  The class must

    * give the same row of weights and state whatever other rows there are, and whatever it was called for before;
    * keep as state None, arrays of one row for each row of the weight, or tuples of them; a row no longer than one
      of the weight, of the weight's dtype;
    * hold in its attributes numbers, strings, None, and lists, tuples and dicts of them: these go to the servers
      whenever they have changed, and ``__init__`` is not called there;
    * change weight and state only in ``update``, not its own attributes;
    * take its rates from ``self._get_lr(index)`` and ``self._get_wd(index)``, and its count of updates from
      ``self._update_count(index)`` and ``self._index_update_count[index]``, where `index` may be any number;
    * be importable by name: defined at the top of a module of its own, not in the script.

    It gets a row_sparse weight that has all rows and a row_sparse gradient, as in one process.  A class derived from
    a marked one needs a mark of its own.

    Returns
    -------
    class
        `optimizer_class` itself.

    Raises
    ------
    InputError
        It is no class of optimizers.
    """
    from mxnet.optimizer import Optimizer
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise InputError('row_wise: %r is no subclass of mxnet.optimizer.Optimizer; give the class, not an instance '
                         'or a name' % (optimizer_class,))
    setattr(optimizer_class, _MARK, True)
    return optimizer_class


def is_marked(optimizer: Any) -> bool:
    """Whether the class of `optimizer` itself was marked."""
    return _MARK in vars(type(optimizer))
