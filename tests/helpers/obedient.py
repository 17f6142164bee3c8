"""Programs that use part of the package without MXNet, to be quick, and obey lines on their standard input."""
import os
import subprocess
import sys

from mxhybrid.watchdog import lifeline


def run_python(program, *args):
    """Start a program with the package's directory as its first argument."""
    package = os.path.dirname(os.path.dirname(lifeline.__file__))
    return subprocess.Popen([sys.executable, '-S', '-c', program, package] + [str(arg) for arg in args],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            universal_newlines=True, bufsize=1)


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
