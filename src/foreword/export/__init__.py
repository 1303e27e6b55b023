"""Drafters that were trained here, in the files that other engines load."""
