"""The shell reader: what a script says, held to what bash makes of it, and without running anything."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.converters.shell.script import read_script
from rlrun.converters.shell.state import Word

BASH = shutil.which("bash")
RUN = 'run() { printf "%s\\0" run "$@"; }\nexport -f run\n'


def commands(tmp_path: Path, text: str) -> list[list[Word]]:
    path = tmp_path / "run.sh"
    path.write_text(text)
    return read_script(path).commands


def words(tmp_path: Path, text: str) -> list[str]:
    """The words of the last command."""
    return [word.text for word in commands(tmp_path, text)[-1]]


def assumptions(tmp_path: Path, text: str) -> list[str]:
    """What the words of the last command rest on."""
    return list(dict.fromkeys(note for word in commands(tmp_path, text)[-1] for note in word.notes))


SNIPPETS = [
    "run a 'b c' \"d e\" f\\ g",
    "run a \\\n  b # comment\n",
    "run a#b",
    "X=1\nrun $X ${X} ${X}2 '$X' \"$X\"",
    "X='a b'\nrun $X \"$X\" p$X",
    'run ${Y:-4} ${Y-"6 7"} "${Y:-a b}" ${Y:=5} $Y',
    "run ${A:-${B:-8}} ${A:-${B:-${C:-x}/y}}",
    "B=3; run ${A:-$B} ${B:+set} ${B+set}",
    'A=(--a 1 # one\n  --b "2 3")\nrun ${A[0]} "${A[@]}" ${#A[@]}',
    "A=(1)\nA+=(2 3)\nA[1]=x\nrun ${A[*]} ${A[-1]}",
    'A=()\nrun ${A[@]} x "${A[@]}" ""',
    "A=(a b); run pre${A[0]}post ${A[1]}",
    "export X=7; declare -r Y=8; run $X $Y",
    "X=a; X+=b; run $X; unset X; run ${X:-gone}",
    "run $(echo 'a)b') \"$(echo 'a)b')\" `echo c`",
    "run a > /dev/stdout 2>&1",
    'run "a\\"b" "\\$X" $\'t\\tab\'',
    "run $",
    "X=6; run $((X * 2 + 1)) $(( 1024 * 1024 * 1024 * 2 )) $((96000 / 8))",
    "run $((-7 / 2)) $((-7 % 3)) $((2 ** 10)) $((0x10 - 1)) $(((2 + 3) * 4))",
    "X=3; run $((X > 2 ? X : 0)) $((X++)) $X $((X += 2)) $((1 << 4 | 1)) $((!X)) $((X == 6 && 1))",
    "N=4; A=1; run ${R:-$((N - A))}",
    'run 1 2 $(seq 16 8 40) $(seq 3) "$(seq 2 3)"',
    'D=chen/geo; run $(basename "$D") $(basename a.sh .sh) $(dirname /a/b) "$(dirname -- /a/b/c)"',
    "run $(echo Qwen3-A | tr '[:upper:]' '[:lower:]') $(echo 0,1,2 | tr ',' '\\n' | wc -l)",
    "X=/a/b.sh; run ${X%.sh} ${X##*/} ${X#/} ${X%%/*}x ${X/b/c} ${X//[/]/-} ${X:1:2} ${#X}",
    "X=Ab; run ${X^^} ${X,,} ${X^} ${X,}",
    "X=name; name=5; run ${!X}",
    "if [ 3 -gt 2 ]; then X=1; else X=0; fi; run $X",
    'if [ -z "$NOT_SET_HERE" ] || [ "$NOT_SET_HERE" = "0" ]; then X=0; else X=1; fi; run $X',
    'if [[ "a.sh" == *.sh && -n x ]]; then run yes; fi',
    "X=2; if ((X > 3)); then run a; elif ((X == 2)); then run b; else run c; fi",
    '[ "$X" = 1 ] && X=2 || X=3; run $X',
    "N=3; A=(); for ((i=0; i<N; i++)); do if ((i < 1)); then A+=(0); else A+=(1); fi; done; run ${A[@]}",
    "printf -v F '[%s]' \"$(IFS=', '; A=(0 1 1); echo \"${A[*]}\")\"; run $F",
    "for x in a b; do run $x; done",
    "I=0; while ((I < 3)); do I=$((I + 1)); done; run $I",
    "case qwen3-4B in qwen2*) X=2;; qwen3*|glm*) X=3;; *) X=0;; esac; run $X",
    'main() {\n  local n="$1"\n  run $n "$2" $#\n}\nmain 1 "2 3"',
    'function go { run "$@"; }\ngo a "b c"',
    "cat <<EOF > /dev/null\n--not a flag $(echo )\nEOF\nrun x",
    'X=$(cat <<EOF\n{"a": "b)"}\nEOF\n)\nrun "$X"',
    'X=4\nrun "$(cat <<\'EOF\'\n$X\nEOF\n)" "$(cat <<EOF\n$X\nEOF\n)"',
    "eval 'run $((1 + 1))'",
    "{ run a; } && ( run b )",
    "true && run a || run b",
    "false || run c",
    "X='--a 1\n --b 2'; run $X",
    "! false && run x",
    'X=1; run "${X}"_"${Y:-2}" \'a\'"b"c',
    "env A=1 bash -c 'run $((1 + 2))'",
    "bash <<EOF\nrun in a document\nEOF",
    "run --flag=$((2*3)) --list={1}",
    'set -e; set -- "a b" c; run "$@" $# "$1"',
    'set -- a b c d; shift; run "$@"; shift 2; run "$@" $#',
    'set -- a; set -- "$@" b; run "$@"',
    'f() { shift; run "$@"; }; set -- z; f x "y z"; f 1 2 "$@"',
]


@pytest.mark.skipif(BASH is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("text", SNIPPETS)
def test_words_are_those_of_bash(tmp_path: Path, text: str) -> None:
    assert BASH is not None
    done = subprocess.run(
        [BASH, "-c", RUN + text], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    expected = done.stdout.split("run\0")[-1].split("\0")[:-1]
    assert words(tmp_path, text) == ["run", *expected]


def test_the_folder_of_the_script_is_known(tmp_path: Path) -> None:
    (tmp_path / "scripts/models").mkdir(parents=True)
    (tmp_path / "examples").mkdir()
    (tmp_path / "scripts/models/small.sh").write_text("MODEL_ARGS=(--num-layers 2)\n")
    path = tmp_path / "examples/run.sh"
    path.write_text(
        'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\n'
        'ROOT=$(cd "$(dirname "$0")/../" && pwd)\nsource "${DIR}/../scripts/models/small.sh"\n'
        "run ${MODEL_ARGS[@]} $ROOT\n"
    )
    found = [word.text for word in read_script(path).commands[-1]]
    assert found == ["run", "--num-layers", "2", str(tmp_path)]


@pytest.mark.parametrize(
    "written",
    ["/root/slime/scripts/models/small.sh", "../scripts/models/small.sh", "${HOME_OF_IT}/models/small.sh"],
)
def test_a_sourced_file_is_found_where_the_repository_lies(tmp_path: Path, written: str) -> None:
    (tmp_path / "scripts/models").mkdir(parents=True)
    (tmp_path / "scripts/low").mkdir()
    (tmp_path / "scripts/models/small.sh").write_text("MODEL_ARGS=(--num-layers 2)\n")
    path = tmp_path / "scripts/low/run.sh"
    path.write_text(f'source "{written}"\nrun ${{MODEL_ARGS[@]}}\n')
    assert [word.text for word in read_script(path).commands[-1]] == ["run", "--num-layers", "2"]


WRITES = [
    "touch {0}",
    "X=$(touch {0})",
    "run `touch {0}`",
    "eval 'touch {0}'",
    "bash -c 'touch {0}'",
    "cat > {0} <<E\nx\nE",
    "if touch {0}; then X=1; fi",
    "printf x > {0}",
    "for i in $(touch {0}); do touch {0}; done",
    "tee {0} <<E\nE",
]


@pytest.mark.parametrize("text", WRITES)
def test_nothing_is_executed_or_written(tmp_path: Path, text: str) -> None:
    made = tmp_path / "made"
    commands(tmp_path, text.format(made) + "\nrun $X\n")
    assert not made.exists()


def test_the_environment_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hidden")
    assert words(tmp_path, 'run $SECRET_KEY ${SECRET_KEY}/x "${SECRET_KEY:-d}"') == [
        "run",
        "${SECRET_KEY}",
        "${SECRET_KEY}/x",
        "d",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run $(date +%Y) x", ["run", "$(date +%Y)", "x"]),
        ("X=a_$(date '+%Y %m'); run /r/$X", ["run", "/r/a_$(date '+%Y %m')"]),
        ("run `hostname -I`", ["run", "`hostname -I`"]),
        ("run $((NOT_SET - 1)) $((1 / 0))", ["run", "$((NOT_SET - 1))", "$((1 / 0))"]),
        ("run ${NOT_SET%/}", ["run", "${NOT_SET%/}"]),
        ("run ${NOT_SET:?must be set}/x", ["run", "${NOT_SET}/x"]),
        ("run $HOME/x", ["run", "~/x"]),
        ("run $((2 ** 10000000))", ["run", "$((2 ** 10000000))"]),
    ],
)
def test_what_only_a_run_would_tell_stays_as_written(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert words(tmp_path, text) == expected


def test_a_condition_that_only_a_run_decides_is_taken_to_hold(tmp_path: Path) -> None:
    text = "if nvidia-smi; then\n  X=1\nelse\n  X=0\nfi\nrun $X\n"
    assert words(tmp_path, text) == ["run", "1"]
    assert assumptions(tmp_path, text) == ["run.sh:2: X is set under a condition that is assumed to hold"]
    text = "if nvidia-smi; then\n  X=1\nfi\nrun y\n"
    assert assumptions(tmp_path, text) == []


def test_a_branch_that_ends_the_script_is_not_taken(tmp_path: Path) -> None:
    text = 'if [ -z "$BASE" ]; then\n  BASE=/none\n  exit 1\nfi\nrun $BASE/x\n'
    assert words(tmp_path, text) == ["run", "${BASE}/x"]


def test_a_variable_from_outside_counts_as_not_set_in_a_condition(tmp_path: Path) -> None:
    text = 'if [ -n "$KEY" ]; then\n  A=(--use)\nelse\n  A=(--not)\nfi\nrun ${A[@]}\n'
    assert words(tmp_path, text) == ["run", "--not"]
    assert assumptions(tmp_path, text) == [
        "run.sh:1: the script does not set KEY, which is assumed to be empty"
    ]


def test_what_cannot_be_read_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("source gone.sh\nrun ${MISSING[@]}\nsource run.sh\n")
    assert read_script(path).notes == [
        "run.sh:1: gone.sh was not found, and is not read",
        "run.sh: the script does not set the array MISSING, which is assumed to be empty",
        "run.sh:3: run.sh sources itself; it is read once",
    ]


def test_a_file_that_the_script_writes_is_known(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text('F=$(mktemp x.yaml)\nN=2\ncat > "$F" <<END\ngpus: $N\nEND\n')
    assert read_script(path).files == {"$(mktemp x.yaml)": "gpus: 2\n"}


@pytest.mark.parametrize("text", ["f() { f; }\nf", "while true; do X=a$X; done", "for ((;;)); do X=1; done"])
def test_a_script_without_end_is_read_or_refused(tmp_path: Path, text: str) -> None:
    with suppress(ValueError):
        commands(tmp_path, text)


GROWING = {
    "a text": ("X=a\nfor i in $(seq 1000); do X=$X$X; done", "grows to more than"),
    "an array": ('A=(a)\nfor i in $(seq 1000); do A+=("${A[@]}"); done', "grows to more than"),
    "eval": ('X=\'eval "$X"\'\neval "$X"', "nests its expressions too deeply"),
    "loops": (
        "for a in $(seq 900); do for b in $(seq 900); do X=1; done; done",
        "more than 100000 statements",
    ),
    "a function": ("f() { f; }\nf", "calls itself without end"),
    "defaults": ("run " + "${A:-" * 500 + "x" + "}" * 500, "nests its expressions too deeply"),
}


@pytest.mark.parametrize(("text", "message"), GROWING.values(), ids=GROWING)
def test_a_script_that_grows_without_end_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        commands(tmp_path, text)


@pytest.mark.parametrize("path", ["/proc/self/environ", "/dev/zero"])
def test_files_of_the_kernel_are_not_read(tmp_path: Path, path: str) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"source {path}\nrun x\n")
    assert "was not found" in read_script(file).notes[0]


PIECES = [
    "a",
    " ",
    "\n",
    "$",
    "${",
    "}",
    "(",
    ")",
    "'",
    '"',
    "\\",
    "`",
    "#",
    "=",
    "X=(",
    "${X[@]}",
    "<<E",
    "E",
    ";",
    "if",
]
PIECES += [
    "then",
    "fi",
    "for ((",
    "))",
    "((",
    "do",
    "done",
    "case",
    "esac",
    ";;",
    "[[",
    "]]",
    "&&",
    "|",
    "f()",
    "{ ",
    "$((",
    "1",
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=30))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.sh"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    with suppress(ValueError):
        read_script(path)


@pytest.mark.parametrize("text", ["run 'a", 'run "a', "run $(a", "run ${a", "run `a"])
def test_what_is_never_closed_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"run\.sh:2: .* is never closed"):
        commands(tmp_path, f"# first\n{text}\n")
