"""Startup checks of every image, also run by `imagegen doctor`: facts about a machine, and checks of these facts.

It runs in every image under the base's own interpreter, before every command: the standard library alone, Python 3.10
or newer, relative imports (in an image the package is called `preflight`), and nothing imported that is not needed.
"""
