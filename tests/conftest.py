"""Settings of the whole test suite: the hypothesis profiles ``default`` and ``short`` (``--hypothesis-profile=short``).

No test asserts how long something took, so hypothesis has no deadline either: on a busy machine slow is not wrong.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", settings.get_profile("default"), max_examples=20)
settings.load_profile("default")
