"""`imagegen doctor`: checks of a host, a container, a log, and the transports between GPUs."""
