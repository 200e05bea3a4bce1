"""doctor: what works on this machine, what does not, and what to do about it.

    configuration -> checks (tttctl.verbs.checks), each `ok`, `note` or `missing` -> exit status 1 where any is missing

Nothing heavy is imported to find out.
"""

from __future__ import annotations

from argparse import Namespace

from tttctl.client import Client
from tttctl.render import say, show_json, table
from tttctl.verbs.checks import devices, machine, model, packages, service
from tttctl.verbs.checks.finding import Finding, missing, ok
from tttdd.config import Config, ConfigError, default_path, load


def doctor(client: Client, options: Namespace) -> int:
    settings, finding = _configuration()
    of_devices, plan = devices.check(settings)
    findings = [*packages.check(settings), finding, *model.check(settings), *of_devices]
    findings += [*machine.check(settings), *service.check(client, settings)]
    healthy = all(finding.state != "missing" for finding in findings)
    if options.json:
        show_json({"healthy": healthy, "findings": findings, "plan": plan})
    else:
        _tell(findings, plan, healthy)
    return 0 if healthy else 1


def _configuration() -> tuple[Config | None, Finding]:
    path = default_path()
    try:
        return load(path), ok("config", str(path))
    except ConfigError as error:
        return None, missing("config", str(error), "correct it, then: tttctl config check")


def _tell(findings: list[Finding], plan: list[str], healthy: bool) -> None:
    table(["WHAT", "STATE", "FOUND"], [[finding.what, finding.state, finding.found] for finding in findings])
    if plan:
        say("\nmemory plan")
    for line in plan:
        say("  " + line)
    say("\nready" if healthy else "\nnot ready: do what is said of the lines that say missing")
    for finding in findings:
        if finding.do:
            say(f"  {finding.what}: {finding.do}")
