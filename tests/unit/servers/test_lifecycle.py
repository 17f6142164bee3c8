"""Tables that the servers cannot create."""
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.servers.lifecycle import check_stale_rows

pytestmark = pytest.mark.both_pythons


def test_staleness_that_no_host_can_cache_is_refused():
    check_stale_rows('words', (2 ** 32 - 2) // 17, 1, 2)
    with pytest.raises(InputError, match=r'words: staleness=1: a table with staleness can have at most 252645134 rows '
                                         r'where a host has 2 workers, but it has 252645135: set MXHYBRID_STALENESS'):
        check_stale_rows('words', (2 ** 32 - 2) // 17 + 1, 1, 2)
