"""C++ kernels for CPUs: compiled by the system compiler, called through ctypes, instructions chosen at run time."""
