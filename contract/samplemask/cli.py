"""The `samplemask` command."""


def main() -> int:
    """Run the command."""
    return 0
