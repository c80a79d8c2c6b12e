"""The command line `fedhold`, one file per group of commands; `import fedhold` imports nothing of it.

In: the words after `fedhold`. Out: what it prints, the files it is asked for, and an exit code. Imports: everything, but the
laboratory and the audit only inside the commands that need them, so that `fedhold --help` answers at once.
"""

from fedhold.cli.app import main

__all__ = ["main"]
