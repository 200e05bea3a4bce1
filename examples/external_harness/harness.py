"""A harness of your own for tttdd, whole: the model is asked for a line of digits, and their sum is the reward.

    tttctl submit digits --external --steps 8 --groups 4 --rollouts 8 --name digits
    pip install openai && python harness.py digits

Put your problem in the place of QUESTION and `judge`.  It can be stopped and started again at any time: what it has to
do, it asks the daemon; what it has reported, it has under an id that makes the same report count once.
"""

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai

QUESTION = "Write one line of digits from 0 to 9. The larger their sum, the better."
AT_ONCE = 16


def judge(answer: str) -> float:
    """The reward: any finite number, higher is better."""
    return float(sum(int(character) for character in answer if character in "0123456789"))


class Harness:
    def __init__(self, socket: str, run: str, max_tokens: int | None) -> None:
        self.run, self.max_tokens = run, max_tokens
        http = httpx2.Client(transport=httpx2.HTTPTransport(uds=socket, limits=httpx2.Limits(max_connections=AT_ONCE)))
        # 503 says "ask again": a release is trained, or the daemon was started again.  The client does that by itself.
        self.model = openai.OpenAI(
            base_url="http://tttdd/v1",
            api_key="none",
            default_headers={"x-tttdd-run": run},
            http_client=http,
            max_retries=100,
            timeout=600,
        )

    def grid(self) -> dict:
        """The step in hand and what it lacks."""
        return self.model.get(f"/runs/{self.run}/grid", cast_to=object)

    def work(self) -> None:
        """Until the run has ended."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while (grid := self.grid())["state"] not in ("finished", "failed", "cancelled"):
                list(threads.map(lambda place: self.fill(grid, place), grid["missing"]))
                if not grid["missing"]:  # the step is trained and its release published
                    time.sleep(0.5)
        print(f"{self.run} is {grid['state']} after {grid['step']} steps")

    def fill(self, grid: dict, place: dict) -> None:
        """Sample, judge and report one rollout of the grid."""
        coordinate = {"step": grid["step"], "group": place["group"], "rollout": place["rollout"]}
        try:
            completion = self.model.chat.completions.create(
                model=self.run,
                messages=[{"role": "user", "content": QUESTION}],
                max_tokens=self.max_tokens,
            )
            answer, receipt = completion.choices[0].message.content or "", completion.to_dict()["receipt"]
            report = {
                "score": judge(answer),
                "references": [receipt],
                "report_id": receipt,
                "metadata": {**coordinate, "groups_per_step": grid["groups"], "rollouts_per_group": grid["rollouts"]},
            }
            self.model.post(f"/runs/{self.run}/reports", body=report, cast_to=object)
        except openai.ConflictError as error:
            print(f"{coordinate}: {error.response.text}")  # the run has gone on, or ended: the grid says what is next


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A harness of your own for tttdd.")
    options.add_argument("run")
    options.add_argument("--socket", default=os.environ.get("TTTDD_SOCKET", "/run/tttdd/tttdd.sock"))
    options.add_argument("--max-tokens", type=int, help="of an answer; default: what the daemon allows")
    chosen = options.parse_args()
    Harness(chosen.socket, chosen.run, chosen.max_tokens).work()
