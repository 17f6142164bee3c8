"""Makes stores by settings in the environment that are wrong, and reports the errors, by the settings.

The arguments are NAME=VALUE. In the end it makes a store by settings that are right.
"""
import os
import sys

from lab.reports import report

import mxhybrid

rank = int(os.environ['HOROVOD_RANK'])
for setting in sys.argv[1:]:
    name, _, value = setting.partition('=')
    os.environ[name] = value
    try:
        mxhybrid.create()
        report(rank, **{setting: 'nothing was refused'})
    except mxhybrid.SettingError as error:
        report(rank, **{setting: str(error)})
    del os.environ[name]
mxhybrid.create()
