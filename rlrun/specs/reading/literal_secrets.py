"""Finds secrets that are written literally in a spec, instead of as a reference `${env:NAME}`.

All values of a spec are written to `spec.toml`, `spec.lock.json` and every tracker. A literal in a place that
is only for secrets (`api_key`, an Authorization header, the password of a URL) is an error. Text that only
looks like a secret is a warning, because it may be the name of a dataset.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, Problem, SpecText, problem_at
from rlrun.specs.problems.positions import KeyPath

_KEY = re.compile(
    r"(^|[_-])(api_?key|pass(word|wd|phrase)|secret|secret_(access_)?key|private_key|credentials?|"
    r"(access|api|auth|bearer|hf|hub|refresh|write)_token)$",
    re.IGNORECASE,
)
"""Names of keys whose values are always secrets."""
_HEADER = re.compile(r"^((proxy-)?authorization|cookie|.*(api-?key|token|secret|password))$", re.IGNORECASE)
_PASSWORD = re.compile(
    r"[a-z][a-z0-9+.-]*://(?!\$\{env:\w+\}@)[^/\s:@]*:(?P<secret>[^/\s@]+)@", re.IGNORECASE
)
"""Matches a password in a URL: `https://user:password@host`, but not `https://${env:CREDENTIALS}@host`."""
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
"""Matches keys of OpenAI, Hugging Face, GitHub, GitLab, AWS, Google, Slack, NVIDIA and others; JWTs; PEM."""
_RUN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{24,}(?![A-Za-z0-9])")
_BITS = 3.5
"""Entropy per character, in bits, from which a run of letters and digits counts as random."""
_CURE = 'export it as an environment variable and write "REFERENCE", also with --set, which `ps` shows'


def literal_secrets(value: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Yields literals where a reference is required: secret keys, secret headers and passwords in URLs."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from literal_secrets(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from literal_secrets(inner, (*path, number))
    elif isinstance(value, str) and value.strip():
        yield from _literal_findings(value, path)


def mask_secrets(text: str) -> str:
    """Returns the text with everything that looks like a secret masked, for logs and messages."""

    def mask(match: re.Match[str]) -> str:
        start, end = (position - match.start() for position in match.span("secret"))
        return match[0] if "${env:" in match["secret"] else f"{match[0][:start]}***{match[0][end:]}"

    return _KNOWN.sub("***", _QUERY.sub(mask, _PASSWORD.sub(mask, text)))


def _literal_findings(text: str, path: KeyPath) -> Iterator[Finding]:
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
        "${env:" not in match["secret"] for pattern in (_PASSWORD, _QUERY) for match in pattern.finditer(text)
    ):
        if path[0] in ("engine", "engines"):
            cure = 'remove it from the URL, and set `api_key = "${env:NAME}"`'
            yield Finding(
                path, _message("the URL contains a secret"), cure, secret=True, code=Code.LITERAL_SECRET
            )
        else:
            yield _finding(path, "the URL contains a secret", "https://user:${env:PASSWORD}@host")


def _finding(path: KeyPath, what: str, reference: str) -> Finding:
    return Finding(
        path,
        _message(what),
        _CURE.replace("REFERENCE", reference),
        reference,
        secret=True,
        code=Code.LITERAL_SECRET,
    )


def _message(what: str) -> str:
    return f"{what}, and would be written to spec.lock.json and to trackers"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def secret_warnings(sources: Sequence[SpecText]) -> Iterator[Problem]:
    """Yields text that looks like a secret in files and `--set`, including comments and unused profiles."""
    for source in sources:
        for start, end in _suspects(source.text):
            message = "this looks like a secret, and is written to the run folder and sent to trackers"
            if source.name.startswith("--set"):
                message += "; while the job runs, `ps` shows it to every user of this host"
            cure = "if it is a secret, export it and refer to it: ${env:NAME}"
            yield problem_at(
                Finding((), message, cure, secret=True, code=Code.LITERAL_SECRET), source, start, end
            )


def _suspects(text: str) -> Iterator[tuple[int, int]]:
    known_keys = [match.span() for match in _KNOWN.finditer(text)]
    yield from known_keys
    for match in _RUN.finditer(text):
        inside = any(start <= match.start() < end for start, end in known_keys)
        if not inside and _is_random(match[0]):
            yield match.span()


def _is_random(text: str) -> bool:
    """Returns whether the text looks randomly generated: letters of both cases and digits, with high entropy.

    A hexadecimal hash does not count, because it has letters of one case only.
    """
    kinds = (str.isupper, str.islower, str.isdigit)
    if not all(any(map(kind, text)) for kind in kinds):
        return False
    bits = -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
    return bits >= _BITS
