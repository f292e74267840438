// Leaves the special functions of C++17 (std::legendre and the like) out of <cmath> of libstdc++.
//
// They are pending templates, instantiated again at the end of every unit that uses a precompiled
// <cmath>: 15 to 30 ms for names that few kernels use. Cells that do use one take other headers.
#pragma once
#if defined(__has_include)
#if __has_include(<bits/c++config.h>)
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
#endif
