"""One thread for numpy and torch in every test and every process it starts: CI has two cores and many processes."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
