"""Run one untrusted program at a time in a contained child of a warm process; knows nothing of tasks or rewards.

Sandbox (client, any thread) --control socket, descriptors--> zygote --clone--> child: one program, then gone
"""

from judges.sandbox.client import Sandbox, Ticket
from judges.sandbox.messages import Entry, JudgeDied, Level, Limits, Outcome

__all__ = ["Entry", "JudgeDied", "Level", "Limits", "Outcome", "Sandbox", "Ticket"]
