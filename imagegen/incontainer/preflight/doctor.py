"""`/opt/imagegen/doctor [--json]` in an image: the same checks, and CUDA itself is asked. Exit code 1: an error."""

import os
import sys


def main(arguments):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from preflight import image, report

    sys.exit(report.main(image.read(), arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
