"""``python -m tests.chaos``: the process that starts the others."""

from tests.chaos.zygote import main

raise SystemExit(main())
