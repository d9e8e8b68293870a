"""What a broker must survive: bad input, kill -9, and a start that cannot be."""
