"""`python3 -m dispatcher_project up|test|help`. Old Pythons can parse this file, so that they can be told."""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("Workflow Dispatcher needs Python 3.11 or newer; this is Python %d.%d." % sys.version_info[:2])  # noqa: UP031
if os.name != "posix":
    sys.exit("Workflow Dispatcher runs on Linux and macOS. On Windows use WSL.")

from dispatcher_project import bootstrap

if __name__ == "__main__":
    bootstrap.main(sys.argv[1:])
