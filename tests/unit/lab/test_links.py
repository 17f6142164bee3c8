"""The use of links: figures from samples, the sampler, and the picture."""
import os
import subprocess
import sys

import numpy as np
import pytest
from lab.benchmark import links
from lab.launchers import REPOSITORY, SCRIPTS

#: Two hosts at 8 Mbit/s: 1,000,000 bytes a second.  Host 0 sends at the full rate from 1.0 to 1.5 s, host 1 never.
TIMES = np.arange(0.0, 3.0, 0.1)
SENT = np.stack([1e6 * np.clip(TIMES - 1.0, 0.0, 0.5), 0 * TIMES], 1)
SAMPLES = links.Samples(TIMES, SENT, SENT[:, ::-1])


def test_shares_of_the_rate_by_host_and_direction():
    use = links.use_of_step(SAMPLES, 1.0, 2.0, 8.0)
    assert use['length'] == 1.0
    middle = [share for at_s, share in zip(use['seconds'], use['sent'][0]) if 0.0 < at_s < 1.0]
    np.testing.assert_allclose(middle, [1.0] * 5 + [0.0] * 5, atol=1e-9)
    assert not any(use['sent'][1]) and use['received'][1] == use['sent'][0]


def test_the_sentence_has_use_and_idleness():
    text = links.describe({'length': 1.0, 'seconds': [0.25, 0.75], 'sent': [[1.0, 0.0], [0.5, 0.5]],
                           'received': [[0.0, 0.0], [1.0, 0.8]]})
    assert text == ('in a step of 1.000 s the hosts sent 50 % of their rate (50 to 50 %), and sent nearly nothing in '
                    '25 % of the time; received 45 % of their rate (0 to 90 %), and received nearly nothing in 50 % of '
                    'the time')


def test_the_step_of_median_length():
    assert links.median_step([1.0, 4.0, 6.0]) == 2
    assert links.median_step([5.0]) == 0


def test_the_sampler_writes_when_its_input_ends(tmp_path):
    program = ('import sys\nfrom lab.benchmark import links\nimport builtins\n'
               'lines = ["head"] + ["port%d: " % h + " ".join(str(100 * h + f) for f in range(16)) for h in (0, 1)]\n'
               'def opened(name, *args, open=open, **how):\n'
               '    if "net/dev" not in name: return open(name, *args, **how)\n'
               '    print("a sample", flush=True)\n'
               '    return __import__("io").StringIO("\\n".join(lines))\n'
               'builtins.open = opened\n'
               'links.sample(2, sys.argv[1])')
    env = dict(os.environ, PYTHONPATH='%s:%s' % (SCRIPTS, REPOSITORY))
    process = subprocess.Popen([sys.executable, '-c', program, str(tmp_path / 'links')], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env=env)
    assert [process.stdout.readline() for _ in range(3)] == [b'a sample\n'] * 3
    assert process.poll() is None and not (tmp_path / 'links').exists()
    process.communicate(timeout=30)
    samples = links.read(str(tmp_path / 'links'), 2)
    assert len(samples.times) > 2 and (np.diff(samples.times) > 0).all()
    assert samples.sent.tolist() == [[0.0, 100.0]] * len(samples.times)
    assert samples.received.tolist() == [[8.0, 108.0]] * len(samples.times)


def test_the_picture(tmp_path):
    pytest.importorskip('matplotlib')
    use = links.use_of_step(SAMPLES, 1.0, 2.0, 8.0)
    links.draw({'hybrid': use, 'dist_sync': use}, str(tmp_path / 'links.png'))
    assert (tmp_path / 'links.png').stat().st_size > 1000
