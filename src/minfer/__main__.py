"""`python -m minfer` is `minfer`."""

from minfer.cli import main

main()
