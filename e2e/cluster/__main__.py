"""Run the tool as `python3 e2e/cluster VERB`, from any folder and without installing anything."""

import sys
from pathlib import Path

# Python put this folder at the head of the path; the package's parent belongs there instead.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from cluster.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
