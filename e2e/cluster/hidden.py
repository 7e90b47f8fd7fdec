"""Run a command that sees folders of its own at /var/lib, /var/log and /run.

`python3 -m cluster.hidden OWN VISIBLE COMMAND...`, in a new mount namespace. OWN is where those folders are;
VISIBLE is a list of folders, joined by colons, that have to stay where they are. See `isolation.hide`.
"""

import os
import sys
from pathlib import Path

from cluster import isolation


def main() -> None:
    own, visible, *command = sys.argv[1:]
    isolation.hide(Path(own), [Path(folder) for folder in visible.split(":")])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
