"""Run the smoke checks of images in a container, and report and keep the results."""
