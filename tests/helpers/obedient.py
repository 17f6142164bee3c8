"""Programs that use part of the package without MXNet, to be quick, and obey lines on their standard input."""
import contextlib
import os
import subprocess
import sys

from mxhybrid.watchdog import lifeline

#: The first lines of each program: a package whose own module, which would import MXNet, is left out.
WITHOUT_MXNET = """
import sys, types
package = types.ModuleType('mxhybrid')
package.__path__ = [sys.argv[1]]
sys.modules['mxhybrid'] = package
"""


def run_python(program, *args):
    """Start a program with the package's directory as its first argument."""
    package = os.path.dirname(os.path.dirname(lifeline.__file__))
    return subprocess.Popen([sys.executable, '-S', '-c', WITHOUT_MXNET + program, package, *map(str, args)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            universal_newlines=True, bufsize=1)


@contextlib.contextmanager
def killed_later():
    """Give a function that takes processes, which are killed after the block."""
    with contextlib.ExitStack() as stack:
        def take(process):
            stack.enter_context(process)  # waits for its end
            stack.callback(process.kill)
            return process

        yield take


class Obedient:
    """A process that answers each line with one."""

    def __init__(self, program, *args):
        self.process = run_python(program, *args)

    def answer(self):
        """The next line that the process says."""
        line = self.process.stdout.readline()
        assert line, 'it has ended: ' + self.process.stderr.read()
        return line.strip()

    def say(self, command):
        """Send a command without waiting for the answer."""
        self.process.stdin.write(command + '\n')

    def ask(self, command):
        """Send a command and wait for the answer."""
        self.say(command)
        return self.answer()
