import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.removed import refuse_command

refuse_command("compare-scores")
