// What `tiles.h` says, compiled for every width of vectors.
#include "vectors.h"

#if defined(__GNUC__)

namespace tensorplay {

namespace {

// Integers as wide as a number.
template <int Bytes>
struct Number;
template <>
struct Number<4> {
  typedef int32_t type;
};
template <>
struct Number<8> {
  typedef int64_t type;
};

#if defined(__x86_64__) || defined(__i386__)
#define TILE_NAME tiles_512
#define TILE_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,fma")))
#define TILE_BYTES 64
#define TILE_ROWS 12
#include "tiles.h"
#undef TILE_NAME
#undef TILE_TARGET
#undef TILE_BYTES
#undef TILE_ROWS
#define TILE_NAME tiles_256
#define TILE_TARGET __attribute__((target("avx2,fma")))
#define TILE_BYTES 32
#define TILE_ROWS 6
#include "tiles.h"
#undef TILE_NAME
#undef TILE_TARGET
#undef TILE_BYTES
#undef TILE_ROWS
#define TILE_ROWS 6
#else
#define TILE_ROWS 12
#endif
#define TILE_NAME tiles_128
#define TILE_TARGET
#define TILE_BYTES 16
#include "tiles.h"

}  // namespace

int best_level() {
#if defined(__x86_64__) || defined(__i386__)
  static const int level = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
      return 2;
    }
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
  }();
  return level;
#else
  return 0;
#endif
}

template <typename T>
const Tiles<T>& tiles_of(int level) {
  static const Tiles<T> found[] = {
      tiles_128::tiles<T>(),
#if defined(__x86_64__) || defined(__i386__)
      tiles_256::tiles<T>(),
      tiles_512::tiles<T>(),
#endif
  };
  return found[level];
}

template const Tiles<float>& tiles_of<float>(int level);
template const Tiles<double>& tiles_of<double>(int level);

}  // namespace tensorplay

#endif
