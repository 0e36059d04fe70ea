"""What runs on the far side of the wall: standard library only, nothing of the package's rest."""
