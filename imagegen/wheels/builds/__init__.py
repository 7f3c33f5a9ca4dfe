"""Running source builds: the stage of the cell's Dockerfile, on a builder, within its memory; into the wheelhouse."""
