import base64
import hashlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from urllib.request import urlopen

import pytest

from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.runner.sweeps.trials import Trial
from rlrun.runner.view.answers import Answers
from rlrun.runner.view.export import collect, evenly_spaced
from rlrun.runner.view.indexer import Indexer
from rlrun.runner.view.page import make_page
from rlrun.runner.view.server import ViewServer, is_own_host
from rlrun.runner.view.viewed_run import ViewedRun
from tests.pictures import picture
from tests.runner.view.view_runs import HOSTILE, record, write_images, write_run, write_step
from tests.waiting import PATIENCE

VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot-LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of the files of uPlot 1.6.32 in its package on npm."""
ASSETS = files("rlrun.runner.view") / "assets"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    run = ViewedRun(write_run(tmp_path_factory.mktemp("view") / "run"))
    with ViewServer(Answers([run]), make_page("run")) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
    run.close()


def ask(server: ViewServer, path: str, method: str = "GET", host: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
    connection.endheaders()
    return connection.getresponse()


def test_the_page_and_its_answers(server: ViewServer) -> None:
    page = ask(server, f"/{server.token}/")
    assert page.status == 200
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert b"://" not in page.read().replace(b"https://github.com/leeoniya/uPlot", b"")
    answer = ask(server, f"/{server.token}/api/runs?selected=0")
    assert json.loads(answer.read())[0]["step"] == 4


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/", "GET", "", 403),
        ("/wrong/api/runs", "GET", "", 403),
        ("/{token}x/", "GET", "", 403),
        ("/{token}/", "GET", "evil.example", 403),
        ("/{token}/", "GET", "127.0.0.1.evil.example:80", 403),
        ("/{token}/", "GET", "localhost:9", 200),
        ("/{token}/", "POST", "", 501),
        ("/{token}/", "DELETE", "", 501),
        ("/{token}/api/nothing", "GET", "", 404),
        ("/{token}/../../etc/passwd", "GET", "", 404),
        ("/{token}/api/sample?run=0&kind=step&step=1&line=999", "GET", "", 400),
        ("/{token}/api/sample?run=0", "GET", "", 400),
    ],
)
def test_who_is_answered(server: ViewServer, path: str, method: str, host: str, status: int) -> None:
    assert ask(server, path.format(token=server.token), method, host).status == status


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["127.0.0.1:80"], True),
        (["[::1]:80"], True),
        (["[::1]"], True),
        (["LOCALHOST"], True),
        (["localhost.evil.example"], False),
        (["localhost:80@evil.example"], False),
        (["127.0.0.1", "evil.example"], False),
        ([], False),
    ],
)
def test_hosts(hosts: list[str], expected: bool) -> None:
    assert is_own_host(hosts) is expected


def test_the_vendored_library_is_what_its_makers_published() -> None:
    digests = {name: hashlib.sha256((ASSETS / "vendor" / name).read_bytes()).hexdigest() for name in VENDORED}
    assert digests == VENDORED
    assert {path.name for path in (ASSETS / "vendor").iterdir()} == {*VENDORED, "README.md"}


def test_a_file_needs_no_server_and_holds_hostile_text_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_run(tmp_path / HOSTILE[:8].replace("/", "_"), 3)
    write_step(folder, 3, [record(3, 0, response=HOSTILE + "</script>")])
    indexer = Indexer(folder)
    indexer.update()
    data = collect([ViewedRun(folder, indexer)])
    page = make_page(HOSTILE, data)
    assert b"<script>document" not in page.html
    assert b'onerror="' not in page.html
    assert "connect-src 'none'" in page.policy
    [own] = data["runs"]
    assert own["records"]["step-3-1"]["response"] == HOSTILE + "</script>"
    quoted = {(row["prompt"], row["excerpt"]) for row in own["samples"] if row["step"] == 3}
    assert quoted == {("question 0", HOSTILE + "</script>")}
    assert own["curves"]["train/loss"][0] == [1, 2, 3]
    assert own["status"]["folder"] == ""


def test_a_file_has_the_images_of_its_samples_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_run(tmp_path / "run", 1)
    data = [picture(seed=seed) for seed in range(3)]
    first, second, unused = write_images(folder, *data)
    images = {"row": [first], "prompt": [[first, 2]], "response": [[second, 2]], "placeholder": 90}
    write_step(folder, 1, [record(1, line, images=images) for line in range(2)])
    indexer = Indexer(folder)
    indexer.update()
    [own] = collect([ViewedRun(folder, indexer)])["runs"]
    assert own["records"]["step-1-1"]["images"] == images
    assert {digest: base64.b64decode(url.partition(",")[2]) for digest, url in own["images"].items()} == {
        first: data[0],
        second: data[1],
    }
    assert unused not in own["images"]


@pytest.mark.parametrize(
    ("steps", "most", "expected"),
    [([1, 2], 5, [2, 1]), ([], 5, []), (list(range(11)), 3, [10, 5, 0])],
)
def test_steps_of_a_file(steps: list[int], most: int, expected: list[int]) -> None:
    assert evenly_spaced(steps, most) == expected


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": str(Path(sys.executable).parent), "XDG_CACHE_HOME": str(folder / "cache")}


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "one", 2)
    before = sorted(path.stat().st_mtime_ns for path in folder.path.rglob("*"))
    command = [*("rlrun", "view", "one", "--runs-dir", "runs", "--html", "one.html")]
    subprocess.run(command, cwd=tmp_path, check=True, env=environment(tmp_path), timeout=PATIENCE)
    assert b"default-src" in (tmp_path / "one.html").read_bytes()
    assert sorted(path.stat().st_mtime_ns for path in folder.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("names", "runs", "all_selected"),
    [
        pytest.param([], {"one", "two"}, False, id="all runs"),
        pytest.param(["one"], {"one"}, False, id="one run"),
        pytest.param(["one", "two"], {"one", "two"}, True, id="two runs"),
        pytest.param(["lrs-sweep"], {"0-lr-1", "1-lr-2"}, True, id="the trials of a sweep"),
    ],
)
def test_the_command_serves_runs_and_sweeps(
    tmp_path: Path, names: list[str], runs: set[str], all_selected: bool
) -> None:
    for name in ("one", "two", "lrs-sweep/0-lr-1", "lrs-sweep/1-lr-2"):
        write_run(tmp_path / "runs" / name, 1)
    sweep = SweepFolder(tmp_path / "runs" / "lrs-sweep")
    sweep.write([Trial("0-lr-1", {"trainer.lr": 1}), Trial("1-lr-2", {"trainer.lr": 2})], "r", larger=True)
    command = ["rlrun", "view", *names]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        url, _, screen = process.stdout.readline().decode().strip().partition("#")
        with urlopen(f"{url}api/runs?selected=0", timeout=PATIENCE) as answer:
            served = json.load(answer)
        process.terminate()
    assert {run["name"] for run in served} == runs
    assert (screen == "overview?runs=all") == all_selected
