"""The matrix and its images as static pages."""
