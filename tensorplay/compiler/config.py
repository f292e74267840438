"""Settings of the compiler: attributes of this module, read at each capture."""

from __future__ import annotations

#: Programs of one compiled function before further ones run eagerly.
recompile_limit: int = 8
#: Raise when that limit is reached, instead of running eagerly.
fail_on_recompile_limit_hit: bool = False
#: Run the passes on graphs before a backend gets them.
passes: bool = True
#: Shapes of one compiled function that are remembered; a forgotten one is captured again.
most_shapes: int = 4096
