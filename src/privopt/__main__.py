"""`python -m privopt`: the command line."""

from privopt.cli import main

if __name__ == "__main__":
    main()
