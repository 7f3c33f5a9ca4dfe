"""`/opt/imagegen/doctor [--json]` in an image: the startup checks, and a call of CUDA itself. Exit code 1: an error."""

import os
import sys


def main(arguments):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from preflight import report
    from preflight.model import read_image

    sys.exit(report.main(read_image(), arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
