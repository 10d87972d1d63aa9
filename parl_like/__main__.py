"""`python -m parl_like` is the command `parl-like`."""

from parl_like.lab.cli import main

raise SystemExit(main())
