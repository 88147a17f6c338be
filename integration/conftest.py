"""The real hosts: their own deprecation warnings are not ours to mend, but ours stay errors."""


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "default")
    config.addinivalue_line("filterwarnings", "error:::samplemask")
    config.addinivalue_line("markers", "slow: costs more than half a minute; only in `make integration`")


def pytest_sessionstart(session):
    """Hypothesis without deadlines: a loaded machine must not fail a test."""
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("samplemask", deadline=None)
    settings.load_profile("samplemask")
