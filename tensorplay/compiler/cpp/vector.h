// Vectors for the kernels that `tensorplay.compiler` writes: types, memory, numbers, reductions.
//
// No standard header is read, so that a kernel compiles in a fraction of a second. A kernel works on
// LANES elements at a time whatever their types are; WIDEST, the size of its widest type in bytes,
// is defined before this file is read. Truth values are lanes of all or no bits, as wide as WIDEST.
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

#ifndef WIDEST
#define WIDEST 4
#endif
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES (VECTOR_BYTES / WIDEST)

#define INLINE static inline __attribute__((always_inline))

namespace tp {

template <class T>
struct Vector {
  typedef T type __attribute__((vector_size(LANES * sizeof(T))));
};
typedef Vector<float>::type f32;
typedef Vector<double>::type f64;
typedef Vector<int8_t>::type i8;
typedef Vector<int16_t>::type i16;
typedef Vector<int32_t>::type i32;
typedef Vector<int64_t>::type i64;
typedef Vector<uint8_t>::type u8;
typedef Vector<uint16_t>::type u16;
typedef Vector<uint32_t>::type u32;
typedef Vector<uint64_t>::type u64;
#if WIDEST == 8
typedef i64 mask;
#elif WIDEST == 4
typedef i32 mask;
#elif WIDEST == 2
typedef i16 mask;
#else
typedef i8 mask;
#endif

// The elements of a vector, and the integers as wide as they are.
template <class V> struct Of;
#define TP_VECTOR(V, E, B) \
  template <> struct Of<V> { typedef E element; typedef B bits; };
TP_VECTOR(f32, float, i32)
TP_VECTOR(f64, double, i64)
TP_VECTOR(i8, int8_t, i8)
TP_VECTOR(i16, int16_t, i16)
TP_VECTOR(i32, int32_t, i32)
TP_VECTOR(i64, int64_t, i64)
TP_VECTOR(u8, uint8_t, i8)
TP_VECTOR(u16, uint16_t, i16)
TP_VECTOR(u32, uint32_t, i32)
TP_VECTOR(u64, uint64_t, i64)
#undef TP_VECTOR

// --- memory and conversions -----------------------------------------------------------------------

template <class V>
INLINE V load(const typename Of<V>::element* at) {
  V v;
  __builtin_memcpy(&v, at, sizeof v);
  return v;
}

template <class V>
INLINE void store(typename Of<V>::element* at, V v) {
  __builtin_memcpy(at, &v, sizeof v);
}

// Read ahead, for loops that compute much or read many arrays: processors do so by themselves within
// a page of few arrays, and arithmetic waits at each new one.
INLINE void prefetch(const void* at) {
  __builtin_prefetch(static_cast<const char*>(at) + 1024);  // beyond an array it does nothing
}

// Past the caches, for results that nobody reads soon; `at` is aligned to the vector.
template <class V>
INLINE void stream(typename Of<V>::element* at, V v) {
#if VECTOR_BYTES == 64 && !defined(__clang__)
  if (sizeof(V) == 64) {
    typedef float v16 __attribute__((vector_size(64)));
    v16 bits;
    __builtin_memcpy(&bits, &v, sizeof bits < sizeof v ? sizeof bits : sizeof v);
    __builtin_ia32_movntps512(reinterpret_cast<float*>(at), bits);
    return;
  }
#elif VECTOR_BYTES == 32 && !defined(__clang__)
  if (sizeof(V) == 32) {
    typedef float v8 __attribute__((vector_size(32)));
    v8 bits;
    __builtin_memcpy(&bits, &v, sizeof bits < sizeof v ? sizeof bits : sizeof v);
    __builtin_ia32_movntps256(reinterpret_cast<float*>(at), bits);
    return;
  }
#endif
  store<V>(at, v);
}

template <class V>
INLINE V splat(typename Of<V>::element x) {
  return x - V{};  // also of -0, to which adding 0 would give +0
}

#if defined(__x86_64__) && !defined(__clang__) && VECTOR_BYTES >= 32 && WIDEST >= 4
#define TP_PACKS_BYTES 1
// Bytes in a register, and the lanes as 32-bit integers: g++ takes vectors of few bytes apart.
typedef char bytes __attribute__((vector_size(16)));
typedef int v4si __attribute__((vector_size(16)));
#if LANES == 16
typedef bytes byte_bits;
#elif LANES == 8
typedef uint64_t byte_bits;
#else
typedef uint32_t byte_bits;
#endif
template <class B>
INLINE bytes packed(B v) {
  byte_bits x;
  __builtin_memcpy(&x, &v, sizeof x);
#if LANES == 16
  return x;
#elif LANES == 8
  typedef uint64_t parts __attribute__((vector_size(16)));
  return reinterpret_cast<bytes>(parts{x, 0});
#else
  typedef uint32_t parts __attribute__((vector_size(16)));
  return reinterpret_cast<bytes>(parts{x, 0, 0, 0});
#endif
}
#if LANES == 16
INLINE i32 widen(u8 v) { return __builtin_ia32_pmovzxbd512_mask(packed(v), i32{}, -1); }
INLINE i32 widen(i8 v) { return __builtin_ia32_pmovsxbd512_mask(packed(v), i32{}, -1); }
#elif LANES == 8
INLINE i32 widen(u8 v) { return __builtin_ia32_pmovzxbd256(packed(v)); }
INLINE i32 widen(i8 v) { return __builtin_ia32_pmovsxbd256(packed(v)); }
#else
INLINE i32 widen(u8 v) { return __builtin_ia32_pmovzxbd128(packed(v)); }
INLINE i32 widen(i8 v) { return __builtin_ia32_pmovsxbd128(packed(v)); }
#endif
// The lowest byte of each lane.
template <class B>
INLINE B narrow(i32 v) {
#if LANES == 16
  return reinterpret_cast<B>(__builtin_ia32_pmovdb512_mask(v, bytes{}, -1));
#else
  v &= 255;
  v4si half[sizeof v / 16];
  __builtin_memcpy(half, &v, sizeof v);
  auto words = __builtin_ia32_packusdw128(half[0], half[sizeof v / 16 - 1]);
  bytes all = __builtin_ia32_packuswb128(words, words);
  B result;
  __builtin_memcpy(&result, &all, sizeof result);
  return result;
#endif
}
template <class V> struct IsByte { static constexpr bool value = false; };
template <> struct IsByte<u8> { static constexpr bool value = true; };
template <> struct IsByte<i8> { static constexpr bool value = true; };
#endif

template <class V, class W>
INLINE V cast(W v) {
#if TP_PACKS_BYTES
  if constexpr (IsByte<W>::value && !IsByte<V>::value) {
    return __builtin_convertvector(widen(v), V);
  } else if constexpr (IsByte<V>::value && !IsByte<W>::value) {
    return narrow<V>(__builtin_convertvector(v, i32));
  }
#endif
  return __builtin_convertvector(v, V);
}

template <class V, class W>
INLINE V bits_as(W v) {
  static_assert(sizeof(V) == sizeof(W), "another size");
  return reinterpret_cast<V>(v);
}

INLINE mask load_mask(const uint8_t* at) { return cast<mask>(load<u8>(at)) != 0; }
INLINE void store_mask(uint8_t* at, mask m) { store<u8>(at, cast<u8>(m & 1)); }
INLINE mask splat_mask(uint8_t x) { return splat<mask>(x ? -1 : 0); }
template <class V>
INLINE V from_mask(mask m) { return cast<V>(m & 1); }
template <class V>
INLINE mask to_mask(V v) { return cast<mask>(v != 0); }

// --- choices --------------------------------------------------------------------------------------

template <class V>
INLINE V select(mask m, V a, V b) {
  return cast<typename Of<V>::bits>(m) ? a : b;
}
INLINE mask select_mask(mask m, mask a, mask b) { return (m & a) | (~m & b); }

template <class V>
INLINE mask is(V lanes) { return cast<mask>(lanes); }  // of the result of a comparison

template <class V>
INLINE V absolute(V v) { return v < 0 ? -v : v; }
INLINE f32 absolute(f32 v) { return bits_as<f32>(bits_as<i32>(v) & 0x7fffffff); }
INLINE f64 absolute(f64 v) { return bits_as<f64>(bits_as<i64>(v) & 0x7fffffffffffffff); }

INLINE f32 copysign(f32 x, f32 s) {
  return bits_as<f32>((bits_as<i32>(x) & 0x7fffffff) | (bits_as<i32>(s) & int32_t(1u << 31)));
}
INLINE f64 copysign(f64 x, f64 s) {
  return bits_as<f64>((bits_as<i64>(x) & 0x7fffffffffffffff) |
                      (bits_as<i64>(s) & int64_t(1ull << 63)));
}

// The larger and the smaller: NaN if one is, and of two zeros the second, as NumPy has it.
template <class V>
INLINE V maximum(V a, V b) { return (a > b) | (a != a) ? a : b; }
template <class V>
INLINE V minimum(V a, V b) { return (a < b) | (a != a) ? a : b; }
// The same, but the other one if one is NaN.
template <class V>
INLINE V fmax(V a, V b) { return (a > b) | (b != b) ? a : b; }
template <class V>
INLINE V fmin(V a, V b) { return (a < b) | (b != b) ? a : b; }

template <class V>
INLINE V sign(V v) {  // of NaN, NaN; of a zero, zero
  V zero = {};
  return v > 0 ? zero + 1 : v < 0 ? zero - 1 : v != v ? v : zero;
}
template <class V>
INLINE mask isfinite(V v) { return is(v - v == 0); }

// --- one instruction each -------------------------------------------------------------------------

#define TP_LANEWISE(result, V, expression) \
  V result;                                \
  for (int i = 0; i < LANES; ++i) result[i] = expression;

#if VECTOR_BYTES == 64 && WIDEST == 4
#define TP_F32 512
#elif (VECTOR_BYTES == 64 && WIDEST == 8) || (VECTOR_BYTES == 32 && WIDEST == 4)
#define TP_F32 256
#endif
#if VECTOR_BYTES == 64 && WIDEST == 8
#define TP_F64 512
#elif VECTOR_BYTES == 32 && WIDEST == 8
#define TP_F64 256
#endif
#if defined(__clang__) || !defined(__x86_64__)
#undef TP_F32
#undef TP_F64
#endif

INLINE f32 fma(f32 a, f32 b, f32 c) {
#if TP_F32 == 512
  return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
#elif TP_F32 == 256 && defined(__FMA__)
  return __builtin_ia32_vfmaddps256(a, b, c);
#else
  TP_LANEWISE(r, f32, __builtin_fmaf(a[i], b[i], c[i])) return r;
#endif
}
INLINE f32 sqrt(f32 x) {
#if TP_F32 == 512
  return __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
#elif TP_F32 == 256
  return __builtin_ia32_sqrtps256(x);
#else
  TP_LANEWISE(r, f32, __builtin_sqrtf(x[i])) return r;
#endif
}
#if TP_F32 == 512
#define TP_ROUND_F32(name, how, scalar) \
  INLINE f32 name(f32 x) { return __builtin_ia32_rndscaleps_mask(x, how, x, -1, 4); }
#elif TP_F32 == 256
#define TP_ROUND_F32(name, how, scalar) \
  INLINE f32 name(f32 x) { return __builtin_ia32_roundps256(x, how); }
#else
#define TP_ROUND_F32(name, how, scalar) \
  INLINE f32 name(f32 x) { TP_LANEWISE(r, f32, scalar##f(x[i])) return r; }
#endif
TP_ROUND_F32(round_even, 8, __builtin_rint)
TP_ROUND_F32(floor, 9, __builtin_floor)
TP_ROUND_F32(ceil, 10, __builtin_ceil)
TP_ROUND_F32(trunc, 11, __builtin_trunc)

INLINE f64 fma(f64 a, f64 b, f64 c) {
#if TP_F64 == 512
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
#elif TP_F64 == 256 && defined(__FMA__)
  return __builtin_ia32_vfmaddpd256(a, b, c);
#else
  TP_LANEWISE(r, f64, __builtin_fma(a[i], b[i], c[i])) return r;
#endif
}
INLINE f64 sqrt(f64 x) {
#if TP_F64 == 512
  return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4);
#elif TP_F64 == 256
  return __builtin_ia32_sqrtpd256(x);
#else
  TP_LANEWISE(r, f64, __builtin_sqrt(x[i])) return r;
#endif
}
#if TP_F64 == 512
#define TP_ROUND_F64(name, how, scalar) \
  INLINE f64 name(f64 x) { return __builtin_ia32_rndscalepd_mask(x, how, x, -1, 4); }
#elif TP_F64 == 256
#define TP_ROUND_F64(name, how, scalar) \
  INLINE f64 name(f64 x) { return __builtin_ia32_roundpd256(x, how); }
#else
#define TP_ROUND_F64(name, how, scalar) \
  INLINE f64 name(f64 x) { TP_LANEWISE(r, f64, scalar(x[i])) return r; }
#endif
TP_ROUND_F64(round_even, 8, __builtin_rint)
TP_ROUND_F64(floor, 9, __builtin_floor)
TP_ROUND_F64(ceil, 10, __builtin_ceil)
TP_ROUND_F64(trunc, 11, __builtin_trunc)

// --- rows -----------------------------------------------------------------------------------------

// `v` where the element `i + lane` is one of the `n` of a row, `other` in what pads it.
template <class V>
INLINE V inside(V v, int64_t i, int64_t n, V other) {
  if (__builtin_expect(n - i >= LANES, 1)) return v;
  V r = other;
  for (int64_t lane = 0; lane < n - i; ++lane) r[lane] = v[lane];
  return r;
}

// Results over the lanes, by halves.
#ifdef __clang__
#define TP_ACROSS(name, expression)          \
  template <class V>                         \
  INLINE typename Of<V>::element name(V v) { \
    typedef typename Of<V>::element E;       \
    E x[LANES];                              \
    __builtin_memcpy(x, &v, sizeof v);       \
    for (int half = LANES / 2; half; half /= 2) \
      for (int i = 0; i < half; ++i) {       \
        E a = x[i], b = x[i + half];         \
        x[i] = expression;                   \
      }                                      \
    return x[0];                             \
  }
#else
#define TP_ACROSS(name, expression)             \
  template <class V>                            \
  INLINE typename Of<V>::element name(V a) {    \
    typename Of<V>::bits other;                 \
    _Pragma("GCC unroll 8")                     \
    for (int half = LANES / 2; half; half /= 2) { \
      for (int i = 0; i < LANES; ++i) other[i] = i ^ half; \
      V b = __builtin_shuffle(a, other);        \
      a = expression;                           \
    }                                           \
    return a[0];                                \
  }
#endif
TP_ACROSS(sum_across, a + b)
TP_ACROSS(product_across, a * b)
TP_ACROSS(max_across, (a >= b) | (a != a) ? a : b)
TP_ACROSS(min_across, (a <= b) | (a != a) ? a : b)
#undef TP_ACROSS

// Results over the parts of a long row: sums by halves, so that errors grow with their logarithm.
static double sum_of_parts(const double* part, int64_t n) {
  if (n < 8) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += part[i];
    return sum;
  }
  return sum_of_parts(part, n / 2) + sum_of_parts(part + n / 2, n - n / 2);
}
#define TP_OF_PARTS(name, start, expression)    \
  template <class E>                            \
  static E name##_of_parts(const E* part, int64_t n) { \
    E x = start;                                \
    for (int64_t i = 0; i < n; ++i) {           \
      E y = part[i];                            \
      x = expression;                           \
    }                                           \
    return x;                                   \
  }
TP_OF_PARTS(sum, 0, x + y)
TP_OF_PARTS(prod, 1, x * y)
TP_OF_PARTS(max, part[0], x >= y || x != x ? x : y)
TP_OF_PARTS(min, part[0], x <= y || x != x ? x : y)
#undef TP_OF_PARTS

INLINE bool any_across(mask m) {
#if VECTOR_BYTES == 64 && WIDEST == 4 && !defined(__clang__)
  return __builtin_ia32_ptestmd512(m, m, -1) != 0;
#elif VECTOR_BYTES == 64 && WIDEST == 8 && !defined(__clang__)
  typedef long long v8 __attribute__((vector_size(64)));
  return __builtin_ia32_ptestmq512(reinterpret_cast<v8>(m), reinterpret_cast<v8>(m), -1) != 0;
#else
  uint64_t x[sizeof m / 8], any = 0;
  __builtin_memcpy(x, &m, sizeof m);
  for (uint64_t part : x) any |= part;
  return any != 0;
#endif
}

}  // namespace tp
