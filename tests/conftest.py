"""One profile for property tests: machines are shared and noisy, so nothing is judged by its time."""

from hypothesis import settings

settings.register_profile("imagegen", deadline=None, max_examples=60)
settings.load_profile("imagegen")
