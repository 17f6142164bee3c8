"""The loop of generations, with commands that are not jobs."""
import pytest

from mxhybrid.elastic.hosts import Host
from mxhybrid.elastic.launcher import ElasticLauncher, Options
from mxhybrid.messaging.keeper_channel import GENERATION

pytestmark = pytest.mark.both_pythons


@pytest.mark.timeout(60)
def test_a_generation_that_was_ended_is_no_success(tmp_path, monkeypatch):
    """A keeper ends and does not start again; the command of the first generation ends with status 0 at SIGTERM."""
    runs = tmp_path / 'runs'

    def command(hosts):
        program = 'trap "exit 0" TERM; echo >> %s; test $%s = 0 || exit 0; sleep 50 & wait' % (runs, GENERATION)
        return ['sh', '-c', program]

    launcher = ElasticLauncher(Options(1, 1, [Host('localhost', 1)], cooldown_s=(0.1, 0.1)), command)
    use, replace_keepers, uses = launcher._keepers.use, launcher._replace_keepers, []

    def use_unless_lost(names):
        uses.append(names)
        return names if len(uses) == 2 else use(names)

    def lose_keeper():
        if len(uses) == 1 and runs.exists():
            launcher._lost['localhost'] = 0.0
        replace_keepers()
    monkeypatch.setattr(launcher._keepers, 'use', use_unless_lost)
    monkeypatch.setattr(launcher, '_replace_keepers', lose_keeper)
    assert launcher.run() == 0
    assert len(runs.read_text()) == 2
