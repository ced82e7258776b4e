"""These tests need the real engines, so they exist only where ``TEST_PLANES`` names their planes (``make test-engines``)."""

from runtime.planes import ONE_SIDED_PLANES
from tests.conformance.planes import PLANES

collect_ignore_glob = [] if set(PLANES) & set(ONE_SIDED_PLANES) else ["test_*.py"]
