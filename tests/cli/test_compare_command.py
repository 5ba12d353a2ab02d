from pathlib import Path

from tests.cli.cli_outcome import Command
from tests.cli.test_run_commands import write_run
from tests.runner.records.test_compared_evaluations import evaluated


def test_a_comparison_is_printed_and_written_as_a_page(rlrun: Command, tmp_path: Path) -> None:
    for name, rewards in (("first", [0, 0]), ("<b>second", [1, 0])):
        write_run(tmp_path, name)
        evaluated(tmp_path / name, {0: rewards, 1: [None, 1]})
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    outcome = rlrun("compare", "first", "<b>second", "--runs-dir", tmp_path, "--html", link)
    assert outcome.code == 0, outcome.err
    assert "first on sums: 1 samples failed or ran out of time and are left out" in outcome.out
    text = page.read_text()
    assert "&lt;b&gt;second" in text and "<b>second" not in text
    assert all(part in text for part in ("difference", "+0.250", "are left out"))
    assert link.is_symlink(), "a file that the user names, such as /dev/stdout, is written, not replaced"
