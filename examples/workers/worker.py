"""Carries out executions of a job whose agent is `workers`; needs Python alone (docs/agents.md).

    WORKERS_KEY=… python worker.py http://10.0.0.1:8790

Replace `execute`: it gets a task and returns what rewards and saved samples read.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

NAME = f"{socket.gethostname()}-{os.getpid()}"


def execute(task):
    """Asks the policy once, and rewards letters."""
    asked = {"model": "policy", "messages": task["messages"]}
    answer = post(f"{task['base_url']}/chat/completions", asked, task["api_key"])
    text = answer["choices"][0]["message"]["content"] or ""
    return {"reward": sum(letter.isalpha() for letter in text) / 8, "worker": NAME}


def main(tasks):
    key = os.environ.get("WORKERS_KEY")
    while True:
        try:
            lease = post(f"{tasks}/tasks/lease", {"worker": NAME, "wait": 20}, key)
        except (OSError, json.JSONDecodeError):  # the job has not begun, or begins again
            time.sleep(1)
            continue
        if lease["lease"] is not None:
            carry_out(f"{tasks}/tasks/{lease['lease']}", lease, key)


def carry_out(url, lease, key):
    """Carries out a task, and gives its result until the job has it or does not want it any more."""
    done = threading.Event()
    threading.Thread(target=stay_alive, args=(url, lease["seconds"], key, done), daemon=True).start()
    try:
        what, body = "result", {"info": execute(lease["task"])}
    except Exception as error:
        what, body = "failed", {"error": f"{type(error).__name__}: {error}"}
    done.set()
    for _ in range(30):
        try:
            post(f"{url}/{what}", body, key)
            return
        except urllib.error.HTTPError as error:
            print(f"{lease['task']['id']}: {error} {error.read().decode()}", file=sys.stderr)
            return
        except OSError:  # sent again, the same result counts once
            time.sleep(1)


def stay_alive(url, seconds, key, done):
    while not done.wait(seconds / 3):
        with contextlib.suppress(OSError):
            post(f"{url}/alive", {}, key)


def post(url, body, key):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
