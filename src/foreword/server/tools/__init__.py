"""Tools: how models write calls of functions, read from their text as it comes and held to the functions' schemas."""
