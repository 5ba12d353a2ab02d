"""No secret leaves the process by its log, whatever an exception quotes."""

import io
import logging
from functools import partial

from rlrun.runner.records.driver_log import SecretFormatter, hide_secrets
from rlrun.specs.reading.secret_references import redact_secrets

SPEC = {"rewards": [{"headers": {"Authorization": "Bearer ${env:JUDGE_KEY}"}}], "name": "${env:UNSET}"}


def test_messages_and_traces_are_written_without_secrets(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("JUDGE_KEY", "correct horse")
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(SecretFormatter("%(message)s", partial(hide_secrets, SPEC)))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise RuntimeError("http://me:hunter2@host/x said: no correct horse")
    except RuntimeError:
        logger.exception("asked with %s and %s", "correct horse", "hf_abcdefghijklmnop1234")
    text = out.getvalue()
    assert "asked with ${env:JUDGE_KEY} and ***" in text
    assert "RuntimeError: http://me:***@host/x said: no ${env:JUDGE_KEY}" in text
    assert not any(secret in text for secret in ("correct horse", "hunter2", "hf_"))


def test_words_that_are_too_short_to_be_secrets_stay() -> None:
    assert redact_secrets("a cat sat", {"a": "${env:A}", "b": "${env:B}"}, {"A": "a", "B": ""}) == "a cat sat"
