"""What is said of an image, who says it, and whether they are believed."""
