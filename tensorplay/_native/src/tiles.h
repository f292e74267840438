// Loops of convolutions and pooling, compiled once for every width of vectors: `vectors.cpp` includes
// this file with TILE_NAME (a namespace), TILE_TARGET (what the functions may use), TILE_BYTES (of a
// vector) and TILE_ROWS (that leave registers for two vectors each and what they are made of).
//
// A product's result is the sum of its terms in the order of their index, whatever the tile.

namespace TILE_NAME {

template <typename T>
struct Lanes {
  // Lies anywhere, like the numbers it is made of.
  typedef T vector __attribute__((vector_size(TILE_BYTES), aligned(alignof(T)), may_alias));
  static constexpr int count = TILE_BYTES / sizeof(T);
};

// out[r][…] (+)= Σ_k filters[k][r] panel[k][…], for R rows of two vectors.
template <typename T, int R>
TILE_TARGET void multiply(const T* filters, const T* panel, T* out, int64_t step, int64_t count,
                          bool first) {
  using V = typename Lanes<T>::vector;
  constexpr int n = Lanes<T>::count;
  V a[R], b[R];
  for (int r = 0; r < R; ++r) {
    V* row = reinterpret_cast<V*>(out + r * step);
    a[r] = first ? V{} : row[0];
    b[r] = first ? V{} : row[1];
  }
  for (int64_t k = 0; k < count; ++k) {
    const V* columns = reinterpret_cast<const V*>(panel + k * 2 * n);
    V left = columns[0], right = columns[1];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      T factor = filters[k * R + r];
      a[r] += left * factor;
      b[r] += right * factor;
    }
  }
  for (int r = 0; r < R; ++r) {
    V* row = reinterpret_cast<V*>(out + r * step);
    row[0] = a[r];
    row[1] = b[r];
  }
}

// The same without what was there before, of columns that lie at the offsets of k behind two places.
template <typename T, int R>
TILE_TARGET void multiply_there(const T* filters, const T* left, const T* right,
                                const int64_t* offsets, T* out, int64_t step, int64_t count) {
  using V = typename Lanes<T>::vector;
  V a[R] = {}, b[R] = {};
  for (int64_t k = 0; k < count; ++k) {
    V first = *reinterpret_cast<const V*>(left + offsets[k]);
    V second = *reinterpret_cast<const V*>(right + offsets[k]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      T factor = filters[k * R + r];
      a[r] += first * factor;
      b[r] += second * factor;
    }
  }
  for (int r = 0; r < R; ++r) {
    V* row = reinterpret_cast<V*>(out + r * step);
    row[0] = a[r];
    row[1] = b[r];
  }
}

// out[r][…] += Σ_n source[offsets[r] + n] slopes[n][…] over the windows n of an image, for R places
// of the kernel and W vectors of channels.
template <typename T, int R, int W>
TILE_TARGET void correlate(const T* slopes, const T* source, const int64_t* offsets,
                           const Walk& walk, T* out) {
  using V = typename Lanes<T>::vector;
  V sums[R * W];
  for (int i = 0; i < R * W; ++i) sums[i] = reinterpret_cast<V*>(out)[i];
  const V* next = reinterpret_cast<const V*>(slopes);
  for (int64_t z = 0; z < walk.counts[0]; ++z) {
    for (int64_t y = 0; y < walk.counts[1]; ++y) {
      const T* row = source + z * walk.steps[0] + y * walk.steps[1];
      for (int64_t x = 0; x < walk.counts[2]; ++x, row += walk.steps[2], next += W) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          T factor = row[offsets[r]];
          for (int w = 0; w < W; ++w) sums[r * W + w] += next[w] * factor;
        }
      }
    }
  }
  for (int i = 0; i < R * W; ++i) reinterpret_cast<V*>(out)[i] = sums[i];
}

// The largest elements of windows, the first of equal ones and of NaN, and which of the channel.
template <typename T>
TILE_TARGET void largest(const T* source, const Row& row, T* values, int64_t* places) {
  using V = typename Lanes<T>::vector;
  constexpr int n = Lanes<T>::count;
  typedef typename Number<sizeof(T)>::type Int;
  typedef Int I __attribute__((vector_size(TILE_BYTES), aligned(alignof(Int)), may_alias));
  for (int64_t start = 0; start < row.count; start += n) {
    // The last vector may begin before the one before it ended: what it writes is the same.
    if (start + n > row.count) start = row.count - n;
    const T* from = source + start * row.stride;
    V most = {};
    I best = {};
    for (int64_t y = 0; y < row.rows; ++y) {
      for (int64_t x = 0; x < row.columns; ++x) {
        int64_t there = y * row.row_step + x * row.column_step;
        V found;
        if (row.stride == 1) {
          found = *reinterpret_cast<const V*>(from + there);
        } else {
          const T* here = from + there;
          if (row.stride == 2) {
#pragma GCC unroll 16
            for (int i = 0; i < n; ++i) found[i] = here[2 * i];
          } else {
#pragma GCC unroll 16
            for (int i = 0; i < n; ++i) found[i] = here[i * row.stride];
          }
        }
        I more = ~(I)(found <= most) & (I)(most == most);
        if (x + y == 0) more = ~I{};
        most = (V)(((I)found & more) | ((I)most & ~more));
        best = ((I{} + static_cast<Int>(there)) & more) | (best & ~more);
      }
    }
    *reinterpret_cast<V*>(values + start) = most;
    for (int i = 0; i < n; ++i) places[start + i] = row.first + (start + i) * row.stride + best[i];
  }
}

template <typename T, int R>
void fill(Tiles<T>& tiles) {
  if constexpr (R > 0) {
    tiles.multiply[R] = multiply<T, R>;
    tiles.multiply_there[R] = multiply_there<T, R>;
    tiles.correlate[0][R] = correlate<T, R, 1>;
    tiles.correlate[1][R] = correlate<T, R, 2>;
    fill<T, R - 1>(tiles);
  }
}

template <typename T>
Tiles<T> tiles() {
  Tiles<T> found;
  found.lanes = Lanes<T>::count;
  found.rows = TILE_ROWS;
  found.largest = largest<T>;
  fill<T, TILE_ROWS>(found);
  return found;
}

}  // namespace TILE_NAME
