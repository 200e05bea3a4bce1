"""What `tttctl --help` and `tttctl VERB --help` say besides the arguments: the verbs in groups, and examples."""

from __future__ import annotations

import argparse

from tttctl.render import width

GROUPS = {
    "try it": ("demo", "doctor"),
    "runs": ("submit", "runs", "status", "watch", "monitor", "logs", "pause", "resume", "cancel", "client"),
    "what a run has found": ("best", "show", "diff", "verify", "plot", "report", "compare", "export"),
    "problems": ("tasks", "task"),
    "settings": ("config", "completion"),
}
OTHER = "others"
EXAMPLES = {
    "submit": (
        "tttctl submit circle_packing_26 --steps 8 --watch",
        "tttctl submit mine --no-train --seed 1 --name base",
        "tttctl submit digits --external --steps 8 --groups 4 --rollouts 8",
    ),
    "status": ("tttctl status", "tttctl status circle_packing_26-1 --json"),
    "logs": ("tttctl logs circle_packing_26-1 -f", "tttctl logs circle_packing_26-1 --source trainer.log -n 1000"),
    "pause": ("tttctl pause circle_packing_26-1 --release-gpus",),
    "client": ("tttctl client digits-1", "tttctl client digits-1 --json"),
    "best": ("tttctl best circle_packing_26-1 -o best.py",),
    "show": ("tttctl show circle_packing_26-1 47", "tttctl show circle_packing_26-1 best --lineage"),
    "diff": ("tttctl diff circle_packing_26-1 starter best", "tttctl diff circle_packing_26-1 12 47 > change.patch"),
    "export": ("tttctl export circle_packing_26-1 ~/packing",),
    "verify": ("tttctl verify circle_packing_26-1", "tttctl verify --task circle_packing_26 mine.py"),
    "plot": ("tttctl plot circle_packing_26-1 -o run.svg",),
    "report": ("tttctl report circle_packing_26-1 -o run.html",),
    "compare": ("tttctl compare seed-0 seed-1 seed-2 -o seeds.png",),
    "new": ("tttctl task new mine --dir ~/tasks",),
    "check": ("tttctl task check ~/tasks/mine",),
    "config": ("tttctl config check --file /etc/tttdd/tttdd.toml", "tttctl config schema > tttdd.schema.json"),
    "completion": (
        "source <(tttctl completion bash)",
        "tttctl completion bash > ~/.local/share/bash-completion/completions/tttctl",
        "tttctl completion zsh > ~/.zfunc/_tttctl",
        "tttctl completion tcsh > ~/.tttctl.tcsh",
    ),
    "demo": ("tttctl demo erdos_min_overlap --steps 4", "tttctl demo ~/tasks/mine --state-dir ~/first-run"),
}


class Help(argparse.HelpFormatter):
    """argparse makes one for every argument, and would ask shutil for the width: too slow to import."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=(width() or 80) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)

    def _format_action(self, action: argparse.Action) -> str:
        """The verbs by group."""
        verbs = {verb.dest: verb for verb in self._iter_indented_subactions(action)}
        if action.dest != "verb" or not verbs:
            return super()._format_action(action)
        named = {name for names in GROUPS.values() for name in names}
        groups = GROUPS | {OTHER: tuple(verbs.keys() - named)}
        parts: list[str] = []
        for title, names in groups.items():
            if there := [verbs[name] for name in names if name in verbs]:
                self._indent()
                lines = [super(Help, self)._format_action(verb) for verb in there]
                self._dedent()
                parts.append(f"{'':{self._current_indent}}{title}\n{''.join(lines)}")
        return "\n".join(parts)


def examples(verb: str) -> str | None:
    given = EXAMPLES.get(verb, ())
    return "\n  ".join([f"example{'s' * (len(given) > 1)}:", *given]) if given else None
