"""Gluon Blocks with tables that no process can hold: only rows that were touched exist, on the servers.

=================================  ===================================================================================
:class:`Embedding`                 a table of rows that are numbered, of any number of rows
:class:`HashEmbedding`             a table of rows with any int64 as key, which grows as keys appear
:class:`EmbeddingCollection`       several tables, which are looked up in one call
:func:`export`                     the dense part of a network, for programs that serve it
:func:`hash_key`                   a stable 64-bit key of strings, integers and tuples
=================================  ===================================================================================

The Trainer of such a net has ``kvstore='hybrid'``, in a job and in one process.
"""
from ..kvstore.table_parameter import TableParameter
from .collection import EmbeddingCollection
from .embedding import Embedding, HashEmbedding
from .hash_key import hash_key
from .symbol_export import export

__all__ = ['Embedding', 'EmbeddingCollection', 'HashEmbedding', 'TableParameter', 'export', 'hash_key']
