"""Several dynamic tables that are looked up in one call."""
from typing import Any, Dict, Mapping, Optional

from mxnet.gluon import Block

from ..base.errors import InputError
from .table_block import ARGUMENTS, TableBlock, look_up


class EmbeddingCollection(Block):
    """Looks up the features of a batch in one call: it requests all rows before it waits for any.

    Features that name the same Block, or Blocks that share their rows, request each row once.  The idea is that of
    TorchRec's ``EmbeddingBagCollection``.

    Parameters
    ----------
    tables : dict
        :class:`Embedding` or :class:`HashEmbedding` by the name of the feature.
    combine : {'sum', 'mean', 'sqrtn'}, optional
        How features that are given with offsets are combined, if their tuple does not say it.

    Examples
    --------
    >>> net.features = mxhybrid.nn.EmbeddingCollection({
    ...     'user': mxhybrid.nn.HashEmbedding(16), 'item': mxhybrid.nn.Embedding(2_000_000_000, 16)})
    >>> rows = net.features({'user': users, 'item': (items, offsets, 'mean')})
    >>> rows['item']
    """

    def __init__(self, tables: Mapping[str, TableBlock], combine: Optional[str] = None, prefix: Optional[str] = None,
                 params: Any = None):
        super().__init__(prefix=prefix, params=params)
        if not isinstance(tables, Mapping) or not tables:
            raise InputError('EmbeddingCollection: %r: give a dict of tables by the names of features' % (tables,))
        self._tables: Dict[str, TableBlock] = {}
        self._combine = combine
        for feature, block in tables.items():
            if not isinstance(block, TableBlock):
                raise InputError('EmbeddingCollection: %r is a %s: give an mxhybrid.nn.Embedding or HashEmbedding'
                                 % (feature, type(block).__name__))
            self._tables[feature] = block
            self.register_child(block, str(feature))

    def __getitem__(self, feature: str) -> TableBlock:
        return self._tables[feature]

    def forward(self, features: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the rows of each feature by its name.

        Parameters
        ----------
        features : dict
            For some or all features: ids, or a tuple or a dict of arguments of :meth:`TableBlock.forward`: ``(ids,
            offsets)``, ``(ids, offsets, 'mean')``, ``{'ids': ids, 'combine': 'mean', 'padding': 0}``.

        Returns
        -------
        dict of NDArray
        """
        if not isinstance(features, Mapping):
            raise InputError('EmbeddingCollection: a %s: give a dict of ids by the names of features'
                             % type(features).__name__)
        unknown = [feature for feature in features if feature not in self._tables]
        if unknown:
            raise InputError('EmbeddingCollection: there is no table for the feature %r: use features among %s'
                             % (unknown[0], ', '.join(map(str, self._tables))))
        blocks = [self._tables[feature] for feature in features]
        lookups = [block.lookup(**self._arguments(feature, given))
                   for block, (feature, given) in zip(blocks, features.items())]
        return dict(zip(features, look_up([block.weight for block in blocks], lookups)))

    def _arguments(self, feature: str, value: Any) -> Dict[str, Any]:
        if isinstance(value, Mapping):
            arguments = dict(value)
        elif isinstance(value, tuple):
            arguments = dict(zip(ARGUMENTS, value))
            if len(value) > len(ARGUMENTS):
                raise InputError('EmbeddingCollection: %r has %d arguments: give at most %s'
                                 % (feature, len(value), ', '.join(ARGUMENTS)))
        else:
            arguments = {'ids': value}
        if 'ids' not in arguments or set(arguments) - set(ARGUMENTS):
            raise InputError('EmbeddingCollection: %r has the arguments %s: give ids, and %s if there are bags'
                             % (feature, ', '.join(map(str, arguments)), ', '.join(ARGUMENTS[1:])))
        if self._combine is not None and arguments.get('offsets') is not None:
            arguments.setdefault('combine', self._combine)
        return arguments
