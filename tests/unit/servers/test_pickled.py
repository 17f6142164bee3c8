"""Commands as pickles: how workers make them, and how servers read them."""
import os
import pickle
import subprocess
import sys

import pytest

from mxhybrid.servers.pickled import pickled

pytestmark = pytest.mark.both_pythons


def test_workers_make_them_without_the_servers_program():
    program = ('import sys, mxhybrid\nfrom mxhybrid.servers.pickled import pickled\npickled("mode", {"keys": []})\n'
               'print(*(name for name in sys.modules if name.startswith("mxhybrid.servers.")))')
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    found = subprocess.check_output([sys.executable, '-c', program], env=env, timeout=60).decode().split()
    assert 'mxhybrid.servers.pickled' in found
    assert not {'mxhybrid.servers.handler', 'mxhybrid.servers.main'} & set(found)


def test_commands_are_text_and_one_handler_answers_them_all():
    assert pickled('find', {'name': 'größe'}).isascii()
    answers = [pickle.loads(pickled('mailbox', {'keys': [key]}).encode()) for key in (4, 5)]
    assert answers[0] is answers[1] and answers[0]._mailbox_keys == [5]
