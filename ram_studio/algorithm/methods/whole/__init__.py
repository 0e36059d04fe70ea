"""Methods that need a tensor whole: singular vectors, angles, norms."""
