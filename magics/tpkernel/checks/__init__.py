"""What is checked, timed and compared of an operator; plain records of what was found."""
