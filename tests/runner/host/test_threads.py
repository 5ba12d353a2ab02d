"""The environment that OpenMP reads in the processes of a job."""

import pytest

from rlrun.runner.host.threads import thread_variables

OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture(autouse=True)
def _no_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPENMP:
        monkeypatch.delenv(name, raising=False)


def test_waiting_threads_spin_briefly() -> None:
    variables = thread_variables(2)
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "2"
    assert set(OPENMP) < variables.keys()


@pytest.mark.parametrize("name", OPENMP)
def test_a_choice_of_the_user_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "passive")
    assert not set(OPENMP) & thread_variables(2).keys()
