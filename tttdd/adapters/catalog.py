"""The daemon's tasks: the judges' folders, seen as a run uses them.

task folder -> judges.task.Task -> Assignment(prompt, judge, identity), loaded afresh each time it is asked for
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

from judges import task as folders
from judges.task import Task, TaskError
from tttdd.adapters.judge_pool import JudgePool
from tttdd.assignment import Assignment
from tttdd.config import Config
from tttdd.domain.prompt import TaskPrompt
from tttdd.errors import NotFound, Refused
from tttdd.protocol import TaskInfo


class JudgeCatalog:
    def __init__(self, config: Config, judges: JudgePool) -> None:
        self._config, self._judges = config, judges
        self._path = [Path(place) for place in config.tasks.path]

    def names(self) -> list[str]:
        return folders.names(self._path)

    def load(self, name: str) -> Assignment:
        if name not in self.names():
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known tasks: {', '.join(self.names())}"
            raise NotFound(f"there is no task named {name!r}", field="task", hint=hint)
        try:
            task = folders.load(name, self._path)
        except TaskError as error:
            raise Refused(str(error), field="task") from None
        settings = self._config.judges
        task = task.limited(settings.time_limit, settings.cpus, settings.memory_gib)
        granted = self._judges.granted(task)
        return Assignment(
            info=_info(task),
            prompt=prompt_of(granted, self._config.prompt.style),
            judge=self._judges.for_task(granted),
            identity=task.identity,
            starter=task.starter_program or "",
        )


def prompt_of(task: Task, style: Literal["chat", "completion"]) -> TaskPrompt:
    return TaskPrompt(
        instruction=task.told,
        short_instruction=task.completion_header,
        style=style,
        objective_name=task.objective.name,
        direction=task.objective.direction,
        starter=task.starter or "",
    )


def _info(task: Task) -> TaskInfo:
    return TaskInfo(
        name=task.name,
        title=task.title,
        objective=task.objective.name,
        direction=task.objective.direction,
        target=task.objective.target,
        time_limit=task.limits.seconds,
        entry_point=task.entry_point,
        figure=task.figure,
    )
