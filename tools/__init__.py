"""Programs for developers of imagegen; they are not installed. Run them in a checkout: `python -m tools.engine up`."""
