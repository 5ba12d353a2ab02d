"""The page in headless Chromium: skipped where playwright or the browser is missing."""

import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.runner.view.answers import Answers
from rlrun.runner.view.export import collect
from rlrun.runner.view.indexer import Indexer
from rlrun.runner.view.page import make_page
from rlrun.runner.view.server import ViewServer
from rlrun.runner.view.viewed_run import ViewedRun
from tests.pictures import picture
from tests.runner.view.view_runs import (
    HOSTILE,
    metrics_line,
    old_record,
    record,
    write_images,
    write_readable_spec,
    write_run,
    write_state,
    write_step,
    write_sweep,
)
from tests.waiting import PATIENCE

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]
Page = playwright.Page
expect = playwright.expect
expect.set_options(timeout=1000 * PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: playwright.Browser, address: str) -> Iterator[Page]:
    """Opens a page; fails for a script's error, a violation of the policy, or a request to elsewhere."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(1000 * PATIENCE)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    own = address.split("#", maxsplit=1)[0]
    page.on("request", lambda request: problems.append(request.url) if is_foreign(request.url, own) else None)
    page.goto(address)
    page.wait_for_selector(".tabs")
    yield page
    page.close()
    assert problems == []


def is_foreign(url: str, own: str) -> bool:
    return not url.startswith((own, "data:"))


@contextmanager
def served(*folders: RunFolder, sweeps: Sequence[SweepFolder] = ()) -> Iterator[str]:
    runs = [ViewedRun(folder) for folder in folders]
    with ViewServer(Answers(runs, sweeps), make_page("test")) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.url
        server.shutdown()
    for run in runs:
        run.close()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["server", "file"])
def page(request: pytest.FixtureRequest, browser: playwright.Browser, tmp_path: Path) -> Iterator[Page]:
    """A run with hostile text, from a server and as a file."""
    folder = write_run(tmp_path / "run")
    hostile = record(4, 7, response=HOSTILE, id=HOSTILE)
    write_step(folder, 4, [*(record(4, line) for line in range(7)), hostile])
    with opened_as(request.param, [folder], browser) as page:
        yield page


@contextmanager
def opened_as(
    form: str,
    folders: Sequence[RunFolder],
    browser: playwright.Browser,
    sweeps: Sequence[SweepFolder] = (),
) -> Iterator[Page]:
    """Opens the page of some runs, from a "server" or as a "file" beside them."""
    if form == "server":
        with served(*folders, sweeps=sweeps) as address, opened(browser, address) as page:
            yield page
        return
    runs = [ViewedRun(folder, Indexer(folder)) for folder in folders]
    for run in runs:
        run.indexer.update()
    path = folders[0].path.with_suffix(".html")
    path.write_bytes(make_page("run", collect(runs, sweeps)).html)
    with opened(browser, path.as_uri()) as page:
        yield page


def rows(page: Page) -> list[list[str]]:
    page.wait_for_selector(".samples tbody a")
    return [row.locator("td").all_inner_texts() for row in page.locator(".samples tbody tr").all()]


def test_the_overview_draws_every_metric(page: Page) -> None:
    page.wait_for_selector('[data-metric="rollout/reward/mean"] canvas')
    assert page.locator(".card .badge").inner_text() == "done"
    label = page.locator('[data-metric="train/loss"] [role=img]').get_attribute("aria-label")
    assert label == "train/loss. run: 1 at step 1, 0.25 at step 4"
    page.fill("#metric-filter", "loss")
    assert page.locator(".chart").count() == 1
    page.check("#log")
    page.locator("#smoothing").fill("0.9")
    assert page.locator(".chart canvas").count() == 1
    expect(page.locator(".u-legend .u-series:visible")).to_have_text(["steplast", "run, smoothed0.4897"])


def test_metrics_that_are_one_number_have_one_chart(page: Page) -> None:
    page.wait_for_selector('[data-metric="rollout/reward/mean"] canvas')
    assert page.locator('[data-metric="rollout/rewards/judge"]').count() == 0
    chart = page.locator('[data-metric="rollout/reward/mean"]')
    expect(chart.locator(".aliases")).to_have_text("same as rollout/rewards/judge")
    page.fill("#metric-filter", "judge")
    expect(page.locator(".chart")).to_have_count(1)


@pytest.mark.parametrize("settings", ["", "log=1", "smoothing=0.9", "from=1&to=2", "log=1&from=7&to=9"])
def test_metrics_that_never_change_are_drawn(
    browser: playwright.Browser, tmp_path: Path, settings: str
) -> None:
    folder = write_run(tmp_path / "run", 3)
    lines = [json.loads(metrics_line(step)) | {"zero": 0, "small": 1e-5, "minus": -2.0} for step in (1, 2, 3)]
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with served(folder) as address, opened(browser, f"{address}#overview?{settings}") as page:
        for name in ("zero", "small", "minus"):
            expect(page.locator(f'[data-metric="{name}"] .chart-canvas > *')).to_have_count(1)
        assert page.locator(".chart .u-value", has_text="--").count() == 0


def test_samples_are_filtered_sorted_and_searched(page: Page) -> None:
    page.keyboard.press("2")
    listed = page.locator(".samples tbody tr")
    expect(listed).to_have_count(32)
    expect(listed.first).to_contain_text("question 0")
    expect(listed.first).to_contain_text("answer 0 of step 4")
    page.select_option("[name=order]", "longest")
    expect(listed.first.locator("td").nth(3)).to_have_text("80")
    page.select_option("[name=status]", "truncated")
    expect(listed).to_have_count(4)
    page.get_by_text("Clear").click()
    page.fill("[name=max_reward]", "0.5")
    page.keyboard.press("Tab")
    expect(listed).to_have_count(8)
    page.select_option("[name=order]", "disagreed")
    expect(page.locator(".samples thead")).to_contain_text("spread")
    page.goto(page.url.split("#")[0] + "#samples")
    page.fill("[name=text]", "ANSWER 3 of step 2")
    page.keyboard.press("Enter")
    expect(listed).to_have_count(1)
    assert rows(page)[0][1] == "2"
    page.goto(page.url.split("#")[0] + "#samples?kind=eval")
    assert len(rows(page)) == 4


def test_a_sample_its_group_and_its_tokens(page: Page) -> None:
    page.goto(page.url.split("#")[0] + "#samples?order=oldest")
    rows(page)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".token")
    assert page.locator("h1").inner_text() == "Sample 0-1"
    assert "reason 1" in page.locator(".rewards").inner_text()
    assert page.locator(".tokens").inner_text() == "42€ tool"
    assert page.locator(".turn h3").all_inner_texts() == ["USER", "ASSISTANT", "ENVIRONMENT"]
    page.get_by_role("button", name="engine–trainer gap").click()
    assert page.locator(".token.low").count() >= 1
    assert "strongest is 0.5" in page.locator(".token-view .hint").inner_text()
    page.keyboard.press("n")
    expect(page.locator("h1")).to_have_text("Sample 0-2")
    page.get_by_text("Whole group").click()
    page.wait_for_selector(".member")
    assert page.locator(".member").count() == 4
    page.keyboard.press("Escape")
    page.wait_for_selector(".token-view")


def test_hostile_text_stays_text(page: Page) -> None:
    page.goto(page.url.split("#")[0] + "#sample?kind=step&step=4&line=8")
    page.wait_for_selector(".turn.assistant")
    shown = page.locator("#main").inner_text()
    assert '<script>document.title="broken"</script>' in shown
    assert "⟨U+202E⟩" in shown
    assert page.title() in ("test", "run")
    assert page.locator("main script, main img").count() == 0
    page.keyboard.press("2")
    rows(page)
    assert page.locator("main script, main img").count() == 0


@pytest.mark.parametrize("form", ["server", "file"])
def test_a_sample_shows_its_images(browser: playwright.Browser, tmp_path: Path, form: str) -> None:
    folder = write_run(tmp_path / "run", 1)
    first, second = write_images(folder, picture(56, 28), picture(28, 28, seed=1))
    images = {"row": [first], "prompt": [[first, 2]], "response": [[second, 1]], "placeholder": 90}
    write_step(folder, 1, [record(1, 0, images=images)])
    with opened_as(form, [folder], browser) as page:
        page.goto(page.url.split("#")[0] + "#sample?kind=step&step=1&line=1")
        for name, width in (("image 1 of the prompt", 56), ("image 1 of the response", 28)):
            image = page.get_by_alt_text(name)
            image.wait_for()
            page.wait_for_function("image => image.naturalWidth > 0", arg=image.element_handle())
            assert image.evaluate("image => image.naturalWidth") == width
        captions = page.locator("figcaption").all_inner_texts()
        assert captions == ["image 1 of the prompt, 2 tokens", "image 1 of the response, 1 tokens"]


def test_a_sample_of_ten_megabytes(browser: playwright.Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 1)
    write_step(folder, 1, [record(1, 0, response="word " * 2_000_000 + "end", response_tokens=None)])
    with served(folder) as address, opened(browser, f"{address}#sample?kind=step&step=1&line=1") as page:
        page.get_by_text("9,800,003 more characters are not shown").wait_for()
        page.get_by_role("button", name="Show all").click()
        page.get_by_text("more characters").wait_for(state="hidden")
        assert (page.locator(".turn.assistant pre").text_content() or "").endswith("word end")


def test_a_run_that_is_being_written(browser: playwright.Browser, tmp_path: Path) -> None:
    running = {"status": "running", "steps": 4, "host": "elsewhere", "seconds_left": 6.0}
    folder = write_run(tmp_path / "run", 2, running)
    with served(folder) as address, opened(browser, address) as page:
        page.get_by_text("step 2 of 4").wait_for()
        page.get_by_text("about 6.0 s").wait_for()
        with folder.metrics.open("a") as file:
            file.write(metrics_line(3))
        write_state(folder, 3, running)
        page.get_by_text("step 3 of 4").wait_for()
        page.keyboard.press("2")
        assert rows(page)[0][1] == "2"
        write_step(folder, 3, [record(3, 0)])
        expect(page.locator(".samples tbody td").nth(1)).to_have_text("3")


def write_entropies(folder: RunFolder, entropies: list[float]) -> None:
    """Writes a step for each of these values of train/entropy."""
    lines = (json.loads(metrics_line(step)) for step in range(1, len(entropies) + 1))
    with_entropy = (
        json.dumps(line | {"train/entropy": value}) for line, value in zip(lines, entropies, strict=True)
    )
    folder.metrics.write_text("".join(f"{line}\n" for line in with_entropy))


@pytest.mark.parametrize("form", ["server", "file"])
def test_the_overview_names_the_bottleneck_and_the_alerts(
    browser: playwright.Browser, tmp_path: Path, form: str
) -> None:
    folder = write_run(tmp_path / "run", 1)
    write_readable_spec(folder)
    write_entropies(folder, [2.0] * 12 + [0.1] * 12)
    with opened_as(form, [folder], browser) as page:
        card = page.locator(".card")
        expect(card).to_contain_text("Speed: Training takes 67 % of a step: add ranks (trainer.parallel)")
        expect(card.locator(".problem")).to_have_count(1)
        expect(card.locator(".problem")).to_contain_text("alert entropy_collapse: entropy fell from 2 to 0.1")


def test_an_alert_appears_while_the_run_goes_on_and_disappears(
    browser: playwright.Browser, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run", 1, {"status": "running", "steps": 60, "host": "elsewhere"})
    write_readable_spec(folder)
    write_entropies(folder, [2.0] * 12)
    with served(folder) as address, opened(browser, address) as page:
        expect(page.locator(".card .advice")).to_contain_text("Training takes")
        expect(page.locator(".card .problem")).to_have_count(0)
        write_entropies(folder, [2.0] * 12 + [0.1] * 12)
        expect(page.locator(".card .problem")).to_contain_text("entropy_collapse")
        write_entropies(folder, [2.0] * 12 + [0.1] * 12 + [2.0] * 12)
        expect(page.locator(".card .problem")).to_have_count(0)


def test_damaged_and_old_runs(browser: playwright.Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    for path in (folder.timeline, folder.vocabulary, folder.lock):
        path.unlink()
    folder.state.write_text("{")
    with folder.metrics.open("a") as file:
        file.write("broken\n")
    write_step(folder, 3, [old_record(3, line) for line in range(2)])
    damaged = folder.rollouts / "step-2.jsonl.zst"
    damaged.write_bytes(damaged.read_bytes()[:40])
    with served(folder) as address, opened(browser, address) as page:
        page.get_by_text("2 problems in its files").wait_for()
        page.keyboard.press("2")
        assert rows(page)[0][1] == "3"
        page.get_by_text("1 damaged lines or files are left out").wait_for()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.get_by_text("No tokens were saved for this sample").wait_for()
        page.keyboard.press("3")
        page.get_by_text("This run has no timelines").wait_for()
        page.keyboard.press("4")
        page.get_by_text("The run has no spec.lock.json").wait_for()


def test_runs_are_compared(browser: playwright.Browser, tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "one", 3), write_run(tmp_path / "two", 4)
    with served(first, second) as address, opened(browser, address) as page:
        page.locator(".run-choice input").nth(1).check()
        expect(page.locator(".card")).to_have_count(2)
        label = page.locator('[data-metric="train/loss"] [role=img]')
        expect(label).to_have_attribute("aria-label", re.compile("one: 1 at step 1.*two: 1 at step 1"))
        page.keyboard.press("3")
        expect(page.locator(".timelines .lanes .hint")).to_have_text(
            ["one, step 3: 3.0 s.", "two, step 3: 3.0 s."]
        )
        page.keyboard.press("4")
        page.wait_for_selector(".differences")
        assert "spec.trainer.steps" in page.locator(".differences").inner_text()


def test_a_copied_address_opens_the_same_view(browser: playwright.Browser, tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, 3) for name in ("one", "two")]
    with served(*folders) as address:
        with opened(browser, address) as page:
            page.locator(".run-choice input").nth(1).check()
            expect(page.locator(".card")).to_have_count(2)
            page.fill("#metric-filter", "loss")
            page.check("#log")
            expect(page).to_have_url(re.compile("filter=loss&log=1"))
            copied = page.url
            page.keyboard.press("Escape")
            page.get_by_role("link", name="Samples").click()
            expect(page.locator(".samples tbody tr")).to_have_count(48)
            page.go_back()
            expect(page.locator(".card")).to_have_count(2)
            expect(page.locator("#metric-filter")).to_have_value("loss")
            page.go_back()
            expect(page.locator(".card")).to_have_count(1)
        with opened(browser, copied) as page:
            expect(page.locator(".card")).to_have_count(2)
            expect(page.locator(".chart")).to_have_count(1)
            expect(page.locator("#log")).to_be_checked()


@pytest.mark.parametrize("form", ["server", "file"])
def test_samples_of_two_runs_are_in_one_list(browser: playwright.Browser, tmp_path: Path, form: str) -> None:
    folders = [write_run(tmp_path / name, 2) for name in ("one", "two")]
    write_step(folders[1], 2, [record(2, 0, response="of the second run")])
    with opened_as(form, folders, browser) as page:
        page.goto(page.url.split("#")[0] + "#samples?runs=one,two")
        expect(page.locator(".samples thead")).to_contain_text("run")
        listed = page.locator(".samples tbody tr")
        expect(listed).to_have_count(25)
        expect(listed.first).to_contain_text("one")
        listed.filter(has_text="of the second run").click()
        expect(page.locator("h1")).to_have_text("Sample 0-0 of two")
        expect(page.locator(".turn.assistant")).to_contain_text("42€")
        page.go_back()
        page.fill("[name=text]", "second run")
        page.keyboard.press("Enter")
        expect(listed).to_have_count(1)
        expect(listed.first).to_contain_text("two")


@pytest.mark.parametrize("form", ["server", "file"])
def test_a_sweep_is_a_table_that_links_its_runs(
    browser: playwright.Browser, tmp_path: Path, form: str
) -> None:
    sweep = write_sweep(tmp_path / "lrs-sweep")
    folders = [sweep.run_of(trial) for trial in sweep.trials()[:2]]
    with opened_as(form, folders, browser, [sweep]) as page:
        page.goto(page.url.split("#")[0] + "#overview?runs=all")
        table = page.locator(".sweep")
        expect(table).to_contain_text("2 of 3 trials are done")
        expect(table).to_contain_text("compared by the last rollout/reward/mean: higher is better")
        expect(table.locator("thead th")).to_have_text(
            ["trial", "trainer.lr", "rollout/reward/mean", "", "status", "step"]
        )
        expect(table.locator("tbody tr")).to_have_count(3)
        expect(table.locator("tr.best > *")).to_have_text(["1", "1e-5", "0.3", "best", "done", "3/3"])
        expect(table.locator("tbody tr").nth(2)).to_contain_text("waiting")
        expect(page.locator(".card")).to_have_count(2)
        table.locator("tr.best a").click()
        expect(page.locator(".card")).to_have_count(1)
        expect(page.locator(".card h2")).to_have_text("1-lr-1e-05")
        table.get_by_text("all trials").click()
        expect(page.locator(".card")).to_have_count(2)


@pytest.mark.parametrize("form", ["server", "file"])
def test_a_spec_shows_what_was_written_apart(browser: playwright.Browser, tmp_path: Path, form: str) -> None:
    folder = write_run(tmp_path / "run", 1)
    lock = json.loads(folder.lock.read_text())
    folder.lock.write_text(json.dumps(lock | {"given": {"trainer": {"lr": 1e-5}}}))
    with opened_as(form, [folder], browser) as page:
        page.keyboard.press("4")
        expect(page.locator(".specs h2")).to_have_text(
            ["Written in the spec of run 1", "Defaults, and what follows from other keys 2"]
        )
        expect(page.locator(".keys").nth(0).locator("tr")).to_have_text("trainer.lr1e-5")
        expect(page.locator(".keys.added tr")).to_have_text(["namerun", "trainer.steps1"])


@pytest.mark.parametrize("form", ["server", "file"])
def test_the_history_of_a_prompt_is_of_its_dataset(
    browser: playwright.Browser, tmp_path: Path, form: str
) -> None:
    """Training's row 0 and row 0 of the evaluation's dataset are different prompts."""
    with opened_as(form, [write_run(tmp_path / "run")], browser) as page:
        base = page.url.split("#")[0]
        for kind, samples in (("step", 16), ("eval", 4)):
            page.goto(f"{base}#sample?kind={kind}&step=2&line=1")
            expect(page.locator("h2", has_text="The same prompt")).to_contain_text(f"({samples} samples)")
            expect(page.locator(".history li")).to_have_count(samples)
            page.get_by_text("Whole group").click()
            expect(page.locator(".member")).to_have_count(4 if kind == "step" else 2)


def test_an_address_selects_all_runs(browser: playwright.Browser, tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"run-{number}", 2) for number in range(3)]
    with served(*folders) as address, opened(browser, f"{address}#overview?runs=all") as page:
        expect(page.locator(".card")).to_have_count(3)
        values = page.locator('[data-metric="train/loss"] .chart-value span')
        expect(values).to_have_count(3)
        colours = [value.evaluate("element => getComputedStyle(element).color") for value in values.all()]
        assert len(set(colours)) == 3, "each value has the colour of its run"


@pytest.mark.parametrize("width", [390, 1280])
def test_no_screen_is_wider_than_the_window(browser: playwright.Browser, tmp_path: Path, width: int) -> None:
    with served(write_run(tmp_path / "run")) as address, opened(browser, address) as page:
        page.set_viewport_size({"width": width, "height": 800})
        for screen in ("overview", "samples", "sample?kind=step&step=1&line=1", "steps", "spec"):
            page.goto(f"{address}#{screen}")
            expect(page.locator("main")).not_to_contain_text("Loading")
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_spec_is_readable_on_a_telephone(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(write_run(tmp_path / "run")) as address, opened(browser, address) as page:
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"{address}#spec")
        value = page.locator(".keys td").first
        expect(value).to_be_visible()
        assert value.bounding_box()["width"] > 150


def test_both_ends_of_a_range_are_on_one_line(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(write_run(tmp_path / "run")) as address, opened(browser, address) as page:
        for width in (390, 820, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(f"{address}#samples")
            for first, last in (("from_step", "to_step"), ("min_reward", "max_reward")):
                tops = [page.locator(f"input[name={name}]").bounding_box()["y"] for name in (first, last)]
                assert tops[0] == tops[1], (width, first)
