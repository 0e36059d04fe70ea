"""Code inside the sandboxed process: standard library only, no other part of the package."""
