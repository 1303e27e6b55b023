"""The command `foreword`, and `python -m foreword`."""

import sys


def main() -> int:
    """Run the command line. Ctrl-C while it is still being imported ends it as Ctrl-C does later."""
    try:
        from foreword.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
