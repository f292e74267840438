"""What the C++ of a cell says: its functions, and how they use each tensor."""
