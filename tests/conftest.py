"""What holds for all tests."""

import os

# A result must not depend on how busy the machine is. Tests of measuring ask for it.
os.environ["QUANTKIT_MEASURE"] = "0"
