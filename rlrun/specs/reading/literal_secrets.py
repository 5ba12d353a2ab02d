"""Secrets that a spec holds itself, where it should refer to them: `${env:NAME}`.

What a spec holds goes into `spec.toml`, `spec.lock.json` and every tracker. A literal where only a secret can
be (`api_key`, an Authorization header, the password of a URL) is refused; what merely looks like one is a
warning, since a dataset may be called that.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlrun.specs.problems.findings import Finding, Problem, Source, problem_at
from rlrun.specs.problems.positions import KeyPath

_KEY = re.compile(
    r"(^|[_-])(api_?key|pass(word|wd|phrase)|secret|secret_(access_)?key|private_key|credentials?|"
    r"(access|api|auth|bearer|hf|hub|refresh|write)_token)$",
    re.IGNORECASE,
)
"""Names of keys that hold nothing but secrets."""
_HEADER = re.compile(r"^((proxy-)?authorization|cookie|.*(api-?key|token|secret|password))$", re.IGNORECASE)
_PASSWORD = re.compile(
    r"[a-z][a-z0-9+.-]*://(?!\$\{env:\w+\}@)[^/\s:@]*:(?P<secret>[^/\s@]+)@", re.IGNORECASE
)
"""In a URL: `https://user:password@host`, but not `https://${env:CREDENTIALS}@host`."""
_QUERY = re.compile(
    r"[?&](api_?key|(access_)?token|secret|password|sig|signature)=(?P<secret>[^&\s#]+)", re.IGNORECASE
)
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,}|sk_live_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{20,}|"
    r"github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|"
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}|nvapi-[A-Za-z0-9_-]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|"
    r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----|"
    r"(?:[Bb]earer|[Bb]asic) +(?=[A-Za-z._~+/=-]*\d)[A-Za-z0-9._~+/=-]{8,})"
)
"""Keys of OpenAI, Hugging Face, GitHub, GitLab, AWS, Google, Slack, NVIDIA and others; JWTs; PEM."""
_RUN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{24,}(?![A-Za-z0-9])")
_BITS = 3.5
"""Entropy per character from which a mixed run of letters and digits is taken for drawn at random."""
_CURE = 'export it as an environment variable and write "REFERENCE", also with --set, which `ps` shows'


def literal_secrets(value: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Literals where a reference belongs: keys, headers and passwords of URLs."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from literal_secrets(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from literal_secrets(inner, (*path, number))
    elif isinstance(value, str) and value.strip():
        yield from _refused(value, path)


def mask_secrets(text: str) -> str:
    """The text without what looks like a secret in it, for logs and messages."""

    def change(found: re.Match[str]) -> str:
        start, end = (at - found.start() for at in found.span("secret"))
        return found[0] if "${env:" in found["secret"] else f"{found[0][:start]}***{found[0][end:]}"

    return _KNOWN.sub("***", _QUERY.sub(change, _PASSWORD.sub(change, text)))


def _refused(text: str, path: KeyPath) -> Iterator[Finding]:
    name = str(next((part for part in reversed(path) if isinstance(part, str)), ""))
    if "${env:" not in text:
        if "headers" in path[:-1] and _HEADER.match(name):
            example = "Bearer ${env:TOKEN}" if name.lower().endswith("authorization") else "${env:TOKEN}"
            yield _finding(path, f"the header {name} is a secret", example)
            return
        if _KEY.search(name):
            yield _finding(path, f"{name} is a secret", "${env:" + _variable(name) + "}")
            return
    if any(
        "${env:" not in found["secret"] for pattern in (_PASSWORD, _QUERY) for found in pattern.finditer(text)
    ):
        if path[0] in ("engine", "engines"):
            cure = 'leave it out of the address, and set `api_key = "${env:NAME}"`'
            yield Finding(path, _message("the URL holds a secret"), cure, secret=True)
        else:
            yield _finding(path, "the URL holds a secret", "https://user:${env:PASSWORD}@host")


def _finding(path: KeyPath, what: str, reference: str) -> Finding:
    return Finding(path, _message(what), _CURE.replace("REFERENCE", reference), reference, secret=True)


def _message(what: str) -> str:
    return f"{what}, and would be written to spec.lock.json and to trackers"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def secret_warnings(sources: Sequence[Source]) -> Iterator[Problem]:
    """What looks like a secret anywhere in files and `--set`, comments and unused profiles included."""
    for source in sources:
        for start, end in _suspects(source.text):
            message = "this looks like a secret, and is written to the run folder and sent to trackers"
            if source.name.startswith("--set"):
                message += "; while the job runs, `ps` shows it to every user of this host"
            cure = "if it is a secret, export it and refer to it: ${env:NAME}"
            yield problem_at(Finding((), message, cure, secret=True), source, start, end)


def _suspects(text: str) -> Iterator[tuple[int, int]]:
    known = [found.span() for found in _KNOWN.finditer(text)]
    yield from known
    for found in _RUN.finditer(text):
        inside = any(start <= found.start() < end for start, end in known)
        if not inside and _is_random(found[0]):
            yield found.span()


def _is_random(text: str) -> bool:
    """Whether letters of both cases and digits are mixed as a generator mixes them; a hash in hex is not."""
    kinds = (str.isupper, str.islower, str.isdigit)
    if not all(any(map(kind, text)) for kind in kinds):
        return False
    bits = -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
    return bits >= _BITS
