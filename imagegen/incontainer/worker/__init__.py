"""The worker that compiles one wheel. It runs where the compilers are: nothing of imagegen, nothing installed."""
