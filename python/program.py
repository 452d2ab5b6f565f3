#!python
"""The command `overlace` of a wheel: starts the program in the package, which is not imported: torch takes seconds."""

import importlib.util
import os
import sys

found = importlib.util.find_spec("overlace")
if found is None or not found.submodule_search_locations:
    sys.exit(f"overlace: error: {sys.executable} has no package overlace; wanted: that of the wheel")
program = os.path.join(found.submodule_search_locations[0], "bin", "overlace")
os.execv(program, [program, *sys.argv[1:]])
