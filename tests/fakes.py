"""Hand-written fakes of the ports, shared by the tests: small, deterministic, with their faults as arguments."""

from __future__ import annotations
