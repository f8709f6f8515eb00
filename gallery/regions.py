"""The words that two regions of the vectors of “apple” are made of."""

FRUIT = ["banana", "pear", "cherry", "grape", "peach", "plum", "mango", "lemon"]
TECH = ["computer", "laptop", "phone", "internet", "robot", "camera", "tablet", "software"]
