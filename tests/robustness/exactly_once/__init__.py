"""The program that test_exactly_once kills, and what keeps it going."""
