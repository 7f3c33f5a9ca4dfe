"""Run source builds, as a stage of the cell's Dockerfile on a builder, within its memory, into the wheelhouse."""
