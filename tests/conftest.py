"""One thread for numpy and torch in every test and every process it starts: CI has two cores and many processes."""

import os

from hypothesis import HealthCheck, settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")
