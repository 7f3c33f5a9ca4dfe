"""Two images, locks or cells side by side; and an image beside what its lock says."""
