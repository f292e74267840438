"""From a spec to a loaded library: the C++ that is appended, and how it is built."""
