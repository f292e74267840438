// Leaves rarely used functions out of the standard headers of libstdc++: the special functions of
// C++17 (std::legendre and the like), and the conversions between strings and numbers that read
// (std::stod and the like) or that are wide.
//
// They are pending templates, instantiated again at the end of every unit that uses a precompiled
// <cmath> or <string>: 15 to 30 ms and 10 ms. Cells that may use one take other headers.
#pragma once
#if defined(__has_include)
#if __has_include(<bits/c++config.h>)
#include <bits/c++config.h>
// These two hold more behind the same macros, which is cheap and stays.
#include <cstdlib>
#include <cwchar>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#undef _GLIBCXX_USE_C99_STDLIB
#undef _GLIBCXX_USE_C99_WCHAR
#endif
#endif
