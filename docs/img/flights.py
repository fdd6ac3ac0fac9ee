"""Draw flights.png of the README: champion and forward-plus in an apartment that neither has seen.

Run it after `make demo`, with the same NAVI_HOME: python docs/img/flights.py
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PICTURE = Path(__file__).with_suffix(".png")


def draw(target: Path = PICTURE) -> None:
    """Fly both from one start and write their map to `target`."""
    with TemporaryDirectory() as folder:
        navi = [sys.executable, "-c", "from navi_core.cli.main import main; main()"]
        flight = ["compare", "champion", "forward-plus", "--scene", "apartment:9005", "--starts", "1", "--maps", folder]
        subprocess.run([*navi, *flight], check=True)
        (drawn,) = Path(folder).glob("*.png")
        target.write_bytes(drawn.read_bytes())


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:]))
