"""The interpreter for uv: it answers queries about itself, and refuses to run anything else.

uv queries its interpreter for markers and paths, then would let it run the build backend of a package that has no
static metadata. This program answers the query with its own path in place of the real interpreter's, so that uv has
nothing else to run; it refuses every other request. Run with `-I`; the first argument is the path under which uv knows
it. It imports nothing of imagegen.
"""

import json
import subprocess
import sys

REFUSAL = "imagegen runs no code of a package while it resolves"
_QUESTION = "from python.get_interpreter_info import main; main()"


def main(alias: str, arguments: list[str]) -> int:
    if arguments[:3] != ["-I", "-B", "-c"] or len(arguments) != 4 or not arguments[3].endswith(_QUESTION):
        sys.stderr.write(f"{REFUSAL}\n")
        return 1
    answer = subprocess.run([sys.executable, *arguments], capture_output=True, check=True).stdout
    facts = json.loads(answer)
    facts["sys_executable"] = facts["sys_base_executable"] = alias
    sys.stdout.write(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
