"""Other libraries' names for overlace's operators."""
