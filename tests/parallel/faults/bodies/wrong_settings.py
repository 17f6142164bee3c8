"""Make stores by wrong settings in the environment; report the errors by the settings.

The arguments are NAME=VALUE. In the end, when both workers have reported, it makes a store by settings that are right;
the launcher ends a worker whose peer has failed.
"""
import os
import sys
import time
from pathlib import Path

from lab.reports import DIRECTORY, read_reports, report

import mxhybrid
from tests.helpers.outcomes import error_of

rank = int(os.environ['HOROVOD_RANK'])
for setting in sys.argv[1:]:
    name, _, value = setting.partition('=')
    os.environ[name] = value
    report(rank, **{setting: error_of(mxhybrid.create, kind=mxhybrid.SettingError)})
    del os.environ[name]

deadline = time.monotonic() + 40
while sum(len(values) for values in read_reports(Path(os.environ[DIRECTORY])).values()) < 2 * len(sys.argv[1:]):
    if time.monotonic() > deadline:
        raise TimeoutError('the other worker has not reported within 40 s')
    time.sleep(0.1)
mxhybrid.create()
