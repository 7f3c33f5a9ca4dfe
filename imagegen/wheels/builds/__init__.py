"""Running source builds: the stage of the cell's Dockerfile, on a builder, within its memory; into the wheelhouse."""

from imagegen.wheels.builds.bench import Bench
from imagegen.wheels.builds.compile import compile_all
from imagegen.wheels.builds.realise import Compiling, here, pulled, realise, unbuilt

__all__ = ["Bench", "Compiling", "compile_all", "here", "pulled", "realise", "unbuilt"]
