"""Real NeMo Gym: makes the servers importable and keeps them out of the way where there is none."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
