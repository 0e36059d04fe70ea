"""What a set's record says beyond scores: why methods do what they do with these agents."""
