"""References to secrets, where they are followed and where they are refused."""

import pytest

from rlrun.specs.reading.secret_references import reveal, unset_references, wrong_references

ENVIRONMENT = {"KEY": "s3cret", "HOST": "h"}


def test_reveal_replaces_references_at_any_depth() -> None:
    params = {
        "key": "${env:KEY}",
        "url": "https://${env:HOST}/${env:KEY}",
        "n": 3,
        "list": [{"a": "${env:KEY}"}],
    }
    assert reveal(params, ENVIRONMENT) == {
        "key": "s3cret",
        "url": "https://h/s3cret",
        "n": 3,
        "list": [{"a": "s3cret"}],
    }
    assert params["key"] == "${env:KEY}"


def test_reveal_names_what_is_not_set() -> None:
    with pytest.raises(ValueError, match="environment variable GONE is not set"):
        reveal({"key": "${env:GONE}"}, ENVIRONMENT)


def test_what_only_looks_like_a_reference_is_left_alone() -> None:
    assert reveal("$KEY {env:KEY} ${KEY} ${}", ENVIRONMENT) == "$KEY {env:KEY} ${KEY} ${}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"trackers": [{"key": "${secret:X}"}]}, "not a valid reference"),
        ({"trackers": [{"key": "${env:A-B}"}]}, "not a valid reference"),
        ({"cluster": {"address": "${env:HOST}"}}, "secrets are only for plugins, api_key and environment"),
        ({"rewards": [{"type": "${env:HOST}"}]}, "secrets are only for plugins, api_key and environment"),
    ],
)
def test_references_nobody_would_follow(data: object, message: str) -> None:
    (finding,) = wrong_references(data, {"cluster.address", "rewards.type"})
    assert message in finding.message


def test_unset_references_have_their_path() -> None:
    data = {"trackers": [{"key": "${env:KEY}"}, {"key": "${env:GONE}"}]}
    assert [finding.path for finding in unset_references(data, ENVIRONMENT)] == [("trackers", 1, "key")]
