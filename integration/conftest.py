"""The real hosts: their own deprecation warnings are not ours to mend, but ours stay errors."""


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "default")
    config.addinivalue_line("filterwarnings", "error:::samplemask")
    config.addinivalue_line("markers", "slow: costs more than half a minute; only in `make integration`")
