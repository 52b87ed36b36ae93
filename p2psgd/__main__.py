"""`python -m p2psgd`: the same as the command `p2psgd`."""

from p2psgd.cli.app import main

main()
