// Functions on vectors of numbers, for every width of vectors that the processor may have.
#pragma once

#include <cstdint>

namespace tensorplay {

#if defined(__GNUC__)

constexpr int kMostRows = 12;  // of a tile

// The windows of an image: how many in each dimension, and how far apart their elements lie.
struct Walk {
  int64_t counts[3], steps[3];
};

// Windows of a row: how many, how far their first elements are apart, what is in each, and which
// element of the channel the first one begins with.
struct Row {
  int64_t count, stride, rows, columns, row_step, column_step, first;
};

template <typename T>
struct Tiles {
  int lanes = 0, rows = 0;
  void (*multiply[kMostRows + 1])(const T*, const T*, T*, int64_t, int64_t, bool) = {};
  void (*multiply_there[kMostRows + 1])(const T*, const T*, const T*, const int64_t*, T*, int64_t,
                                        int64_t) = {};
  // For rows of windows, all of whose places are elements.
  void (*largest)(const T*, const Row&, T*, int64_t*) = nullptr;
  void (*correlate[2][kMostRows + 1])(const T*, const T*, const int64_t*, const Walk&, T*) = {};
};

// The widest vectors that this processor has; 0 are there everywhere.
int best_level();

template <typename T>
const Tiles<T>& tiles_of(int level);

#endif

}  // namespace tensorplay
