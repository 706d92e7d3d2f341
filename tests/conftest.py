"""What every test shares."""

import os

from hypothesis import settings

# No deadline: an example's time depends on what else the machine does. In CI each run has the same examples.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
