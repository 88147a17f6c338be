"""The benchmarks run several times over, stock and samplemask in turn; the best of all passes counts."""

import pytest

PASSES = 3


@pytest.fixture(scope="session", params=range(PASSES))
def turn(request):
    """Number of the pass. pytest runs all benchmarks of one pass before the next."""
    return request.param


@pytest.fixture
def measure(benchmark, turn):
    """Time a call on a fresh argument each round, and note what its line of the table is."""

    def run(call, make, rounds=3, **said):
        benchmark.extra_info.update(said)
        return benchmark.pedantic(
            call, setup=lambda: ((make(),), {}), rounds=rounds, warmup_rounds=int(rounds > 2)
        )

    return run
