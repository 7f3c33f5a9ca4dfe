"""Falls back to Python where its extensions are missing, as apex does: an import proves nothing."""

try:
    import apex_like_C as compiled
except ImportError:
    compiled = None
