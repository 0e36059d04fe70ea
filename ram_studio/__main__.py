"""``python -m ram_studio`` is the command line."""

from ram_studio.cli import main

if __name__ == "__main__":
    main()
