"""The mark for optimizer classes of users that update a table row by row.

Servers hold a table in partitions, and update each of them by itself.  A class can do that if the result for a row does
not depend on other rows: no norms over the table, no random numbers, nothing that counts calls.  A program cannot see
that in a class, so the user declares it; :mod:`mxhybrid.servers.row_wise_check` checks it before anything is sent.

Servers of ``launch.py`` import modules of the user while ``import mxnet`` has not finished, so this module imports it
late.
"""
from typing import Any

from ..base.errors import InputError

#: Attribute of a marked class; it must be set in the class itself, because a subclass may compute anything.
_MARK = '_mxhybrid_row_wise'


def row_wise(optimizer_class: Any) -> Any:
    """Declare that an optimizer class works row by row, so that servers may update row_sparse weights with it.

    Use it as a decorator, or as a function on a class of another package.  The class must

    * compute the same row of weights and state whatever the other rows and earlier calls were;
    * keep as state None, arrays with one row for each row of the weight, or tuples of such arrays; a row is at most as
      long as a row of the weight, and has its dtype;
    * hold in its attributes only numbers, strings, None, and lists, tuples and dicts of them: changed attributes are
      sent to the servers, where ``__init__`` is not called;
    * change only weight and state in ``update``, not its own attributes;
    * take its rates from ``self._get_lr(index)`` and ``self._get_wd(index)``, and its count of updates from
      ``self._update_count(index)`` and ``self._index_update_count[index]``, where `index` may be any number;
    * be importable by name: defined at the top of a module of its own, not in the script.

    Its ``update`` gets a row_sparse weight with all rows and a row_sparse gradient, as in one process.  A class derived
    from a marked class needs a mark of its own.

    Returns
    -------
    class
        `optimizer_class` itself.

    Raises
    ------
    InputError
        `optimizer_class` is not a subclass of ``mxnet.optimizer.Optimizer``.
    """
    from mxnet.optimizer import Optimizer
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise InputError('row_wise: %r is not a subclass of mxnet.optimizer.Optimizer: give the class, not an instance '
                         'or a name' % (optimizer_class,))
    setattr(optimizer_class, _MARK, True)
    return optimizer_class


def is_marked(optimizer: Any) -> bool:
    """Return whether the class of `optimizer` itself was marked."""
    return _MARK in vars(type(optimizer))
